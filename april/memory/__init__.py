"""Memory by tag, released and restored between the phases of a round, at unchanged addresses: on HIP, CUDA and a CPU.

``native/`` is the core in C++: the state machine and its accounting, over a runtime that it opens when it is asked to.
``saver.py`` is what callers hold; ``tensors.py`` and ``gpu.py`` put PyTorch's memory under it; ``tms.py`` has the
surface of torch_memory_saver. All but the last three know nothing of PyTorch.
"""

from april.memory.errors import MemoryFault
from april.memory.kinds import Keep
from april.memory.saver import MemorySaver

__all__ = ["Keep", "MemoryFault", "MemorySaver"]
