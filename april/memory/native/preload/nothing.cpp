// An empty library under the name of torch_memory_saver's. Hosts preload that file into their workers by its name; our
// backend needs nothing there, and a library that needs libstdc++ would bring the system's before the environment's own.
