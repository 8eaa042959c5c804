"""How a replica that is split over devices is replayed: what one of them holds of it.

A file of this package is an engine's way to do it; it is imported when a job asks for it.
"""
