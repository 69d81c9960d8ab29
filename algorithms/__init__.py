"""The catalogue: one module for each algorithm, imported here in the order of the table."""

from ..common.contract import Scheme as Scheme
from .serial import Serial as Serial
from .async_sgd import AsyncSGD as AsyncSGD
from .hogwild import Hogwild as Hogwild
from .downpour import Downpour as Downpour
from .downpour_easy import DownpourEasy as DownpourEasy
from .agn import AGN as AGN
from .adag import ADAG as ADAG
from .dc_asgd import DCASGD as DCASGD
from .ringmaster import Ringmaster as Ringmaster
from .delay_adaptive import DelayAdaptive as DelayAdaptive
from .rescaled_asgd import RescaledASGD as RescaledASGD
from .ringleader import Ringleader as Ringleader
from .malenia import Malenia as Malenia
from .softsync import SoftSync as SoftSync
from .k_batch_async import KBatchAsync as KBatchAsync
from .k_batch_sync import KBatchSync as KBatchSync
from .dynsgd import DynSGD as DynSGD
from .fedbuff import FedBuff as FedBuff
from .aeasgd import AEASGD as AEASGD
from .aeamsgd import AEAMSGD as AEAMSGD
from .async_diloco import AsyncDiLoCo as AsyncDiLoCo
from .halos import HALoS as HALoS
from .hierarchical import Hierarchical as Hierarchical
from .ad_psgd import ADPSGD as ADPSGD
from .ssp import SSP as SSP
from .sync_sgd import SyncSGD as SyncSGD
from .k_sync import KSync as KSync
from .k_async import KAsync as KAsync
from .sync_sgd_lr import SyncSGDLR as SyncSGDLR
from .trimmed_mean import TrimmedMean as TrimmedMean
from .krum import Krum as Krum
from .sagn import SAGN as SAGN
from .easgd import EASGD as EASGD
from .signsgd_mv import SignSGDMV as SignSGDMV
from .ef_sgd import EFSGD as EFSGD
from .ef21_sgdm import EF21SGDM as EF21SGDM
from .demo import DeMo as DeMo
from .one_bit_adam import OneBitAdam as OneBitAdam
from .zero_one_adam import ZeroOneAdam as ZeroOneAdam
from .local_sgd import LocalSGD as LocalSGD
from .slowmo import SlowMo as SlowMo
from .fedopt import FedOpt as FedOpt
from .scaffold import Scaffold as Scaffold
from .fedprox import FedProx as FedProx
from .fednova import FedNova as FedNova
from .bmuf import BMUF as BMUF
from .diloco import DiLoCo as DiLoCo
from .streaming_diloco import StreamingDiLoCo as StreamingDiLoCo
from .eager_diloco import EagerDiLoCo as EagerDiLoCo
from .co2 import CO2 as CO2
from .cocod_sgd import CoCoDSGD as CoCoDSGD
from .decoupled_diloco import DecoupledDiLoCo as DecoupledDiLoCo
from .palsgd import PALSGD as PALSGD
from .des_loc import DESLOC as DESLOC
from .sparseloco import SparseLoCo as SparseLoCo
from .sparta import Sparta as Sparta
from .all_reduce import AllReduce as AllReduce
from .powersgd import PowerSGD as PowerSGD
from .d_psgd import DPSGD as DPSGD
from .dsgd_tracking import DSGDTracking as DSGDTracking
from .sgp import SGP as SGP
from .noloco import NoLoCo as NoLoCo
from .gasloc import GASLoC as GASLoC
from .multi_gpu import MultiGPU as MultiGPU

SCHEMES: dict[str, type[Scheme]] = {
    scheme.name: scheme
    for scheme in list(vars().values())
    if isinstance(scheme, type) and issubclass(scheme, Scheme) and scheme is not Scheme
}
