"""The scheme of a run with `Scheme.regions`: the rules of both levels as one, on variables that one server keeps.

    region r      θ_r and its variables, a row of each [R, ...];  since = messages of its workers since the last merge
    message       server_update of the scheme with θ_r;  since ← since + 1
                  since = every            transit ← message of `above`, with θ_r as the parameters
    up            transit ← server_update of `above` with transit
    down          on_reply of `above` with transit;  since ← 0

With a server for each region, and in virtual time, the message between servers travels, and `up` and `down` are called
when it arrives. Elsewhere it takes no time: `server_update` calls both, `up` at once and `down` at the message
`every + delay`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..lazy import tf
from .kept import EachWorker, Kept, PulledCenter, kept
from .regions import Regions
from .scheme import Scheme
from .views import Server, Worker
from .weighed import extended

KNOWN = "shapes", "fragments", "decayed"  # attributes of a view that are the same on both levels


def two_levels(scheme: Scheme, servers_apart: bool = False) -> Any:
    """Return the scheme that the servers of a run execute: that with the rules of both levels if it has regions.

    Args:
        scheme: the algorithm.
        servers_apart: True if each server of a region, and the global one, is at a place of its own.
    """
    return extended(scheme, _TwoLevels, servers_apart=servers_apart) if scheme.regions else scheme


class _TwoLevels:
    regions: Regions
    servers_apart = False

    def of_region(self, center: Any) -> dict[str, Any]:
        """Return the initial values of the variables of one region, by name."""
        single = self._kept(center).single
        client = self.regions.above.local_variables(center)
        first = {"models": center, "since": 0 * center[0], "transit": 0 * center}
        return {**first, **_named("server_", single), **_named("client_", client)}

    def global_variables(self, center: Any) -> Mapping[str, Any]:
        """Return the variables of all regions, those of each worker, and those of the global server."""
        _, rows, numbers, pulled = self._kept(center)
        of_workers = {name: EachWorker(value) for name, value in {**rows, **numbers}.items()}
        of_workers |= {name: PulledCenter() for name in pulled}
        above = kept(self.regions.above.global_variables, center)
        of_regions = {**self.of_region(center), **_named("each_", {**above.rows, **above.numbers})}
        return {
            **{name: tf.stack([value] * self.regions.number) for name, value in of_regions.items()},
            **_named("worker_", of_workers),
            **_named("global_", above.single),
        }

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        """Merge a message of a worker into the model of its region; return the reply of the region."""
        region, transit, since = (self._row(server, name) for name in ("models", "transit", "since"))
        members = _known(server, "num_workers", "sender", "sent", "completes", *KNOWN)
        variables = self._rows(server, "server_") | _unnamed("worker_", vars(server))
        view = Server(center=region, **variables, **members)
        reply = tf.convert_to_tensor(super().server_update(view, message, staleness))  # pyright: ignore
        now = since.assign_add(1.0)
        sends = tf.equal(now, self.regions.every)

        def leave() -> None:
            transit.assign(self.regions.above.message(self._client(server)))
            if not self.servers_apart:
                self.up(server)

        _when(sends, leave)
        if not self.servers_apart:
            _when(tf.equal(now, self.regions.every + self.regions.delay), lambda: self.down(server))
        return reply

    def up(self, server: Any) -> None:
        """Merge the message of a region into the global model, and keep the reply."""
        transit, members = self._row(server, "transit"), _known(server, *KNOWN)
        members |= {"num_workers": self.regions.number, "sender": self._region(server), "sent": None}
        variables, each = _unnamed("global_", vars(server)), _unnamed("each_", vars(server))
        variables |= {name: Server.row(server, f"each_{name}", self._region(server)) for name in each}
        view = Server(center=server.center, completes=tf.constant(True), **members, **variables)
        transit.assign(self.regions.above.server_update(view, transit.read_value(), tf.constant(0.0)))

    def down(self, server: Any) -> None:
        """Let a region use the reply to its message."""
        self.regions.above.on_reply(self._client(server), self._row(server, "transit").read_value())
        self._row(server, "since").assign(0.0)

    def _client(self, server: Any) -> Worker:
        """Return a region as the worker of the global server."""
        members = {"index": self._region(server), "num_workers": self.regions.number, **_known(server, *KNOWN)}
        return Worker(params=self._row(server, "models"), **self._rows(server, "client_"), **members)

    def _kept(self, center: Any) -> Kept:
        return kept(super().global_variables, center)  # pyright: ignore[reportAttributeAccessIssue]

    def _rows(self, server: Any, prefix: str) -> dict[str, Any]:
        """Return the variables of the region whose names begin so, without that beginning."""
        return {name: self._row(server, f"{prefix}{name}") for name in _unnamed(prefix, vars(server))}

    def _row(self, server: Any, name: str) -> Any:
        return server.row(name, self._region(server))

    def _region(self, server: Any) -> Any:
        return server.sender % self.regions.number


def _named(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}{name}": value for name, value in values.items()}


def _unnamed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _known(server: Any, *names: str) -> dict[str, Any]:
    return {name: vars(server)[name] for name in names if name in vars(server)}


def _when(condition: Any, action: Any) -> None:
    from ..messages.ops import when  # imports TensorFlow

    when(condition, action)
