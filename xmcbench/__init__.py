"""xmcbench: extreme multi-label methods under equal budgets. What is exported here is all that a plugin may use.

`__init__.pyi` lists the exports. Each is imported when it is first used: `import xmcbench` costs no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
