"""The papers' figures, from rows: over workers, per network, per batch, shares, bars."""
