from .build import build_encoder
from .encoder import Encoder
from .settings import EncoderConfig
from .transformer import TransformerEncoder

__all__ = ["Encoder", "EncoderConfig", "TransformerEncoder", "build_encoder"]
