"""Cost models of devices, links, operator and collective time.  Imports nothing from autopar."""
