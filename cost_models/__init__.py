"""The physics: devices, links, operator and collective time, memory.  Imports nothing of autopar."""
