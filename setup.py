"""Packaging of the overlay.

``patches``, ``launch`` and ``configs`` are top-level folders of the repository, but their names are too generic to
install as they are: they are installed as ``april.patches``, ``april.launch`` and ``april.configs``. This mapping is
the only place that says so.
"""

from __future__ import annotations

from setuptools import find_packages, setup

MAPPED = {"april.patches": "patches", "april.launch": "launch", "april.configs": "configs"}


def packages() -> list[str]:
    """Every package under its installed name."""
    found = find_packages(include=["april", "april.*", "specrollout", "specrollout.*"])
    for name, folder in MAPPED.items():
        found += [name, *(f"{name}.{sub}" for sub in find_packages(folder))]
    return found


setup(
    name="april-rollout",
    version="0.1.0",
    description="Active partial rollouts and self-speculative decoding for slime and SGLang",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=packages(),
    package_dir=MAPPED,
    package_data={
        "april.configs": ["**/*.txt", "**/*.in", "**/*.yaml", "**/*.json"],
        "april.launch": ["jobs/templates/*.j2"],
        "april.patches": ["fingerprints.json"],
        "specrollout.kernels": ["native/*.cpp", "native/*.h"],
        "april.memory": ["native/*.cpp", "native/*.h", "native/*/*.cpp"],
    },
    install_requires=["jinja2>=3.1", "packaging>=23", "wrapt>=1.16", "psutil>=5.9", "pyyaml>=6"],
    entry_points={
        "console_scripts": ["april = april.launch.cli:main"],
        "sglang.srt.plugins": [
            "april = april.patches.sglang_plugin:register",
            "specrollout = specrollout.plugin:register",
        ],
    },
)
