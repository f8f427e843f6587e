from .encoder import Encoder
from .settings import EncoderConfig

__all__ = ["Encoder", "EncoderConfig"]
