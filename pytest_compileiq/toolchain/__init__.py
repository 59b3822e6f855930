"""ptxas, cubins, ACFs and caches: what turns PTX and an ACF into machine code, and its proof."""
