"""Programs that measure and plot."""
