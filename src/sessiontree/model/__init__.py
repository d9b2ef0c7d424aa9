"""Models: the protocol, what implements it, and how a name becomes one."""
