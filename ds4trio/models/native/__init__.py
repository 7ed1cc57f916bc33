"""Compiled steps for a CPU: C++ beside this file, built once on the machine that runs it."""
