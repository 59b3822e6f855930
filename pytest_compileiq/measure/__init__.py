"""From launches to evidence: timing units, log-ratios, the betting test, spread."""
