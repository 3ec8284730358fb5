"""What `make setup` does: find the device, then make the CPU environment or add the overlay to the user's own.

Only the standard library is used, in syntax that Python 3.8 reads, since nothing is installed yet when this runs.
Modules import each other relatively: the package runs from the checkout as ``launch.environment`` (see
``launch/bootstrap.py``) and is installed as ``april.launch.environment``.

In order of dependence: ``errors``, ``paths``, ``lockfiles``, ``inventory``, ``progress``, ``commands`` (run a program,
say why it failed), ``steps`` (stamps), ``guard`` (one set-up at a time), ``detect``, ``interpreter``, ``preflight``,
``miles_wheel``, ``probe`` (run by path in the user's own Python), then the two plans ``cpu`` and ``overlay``, and
``__main__``.
"""
