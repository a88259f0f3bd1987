"""Puts this folder on the path of imports: its helpers (serving, kio_oracle) serve the folders below it, too."""
