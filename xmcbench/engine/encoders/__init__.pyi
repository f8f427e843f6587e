from .build import build_encoder
from .dropout import row_dropout
from .encoder import Encoder
from .settings import EncoderConfig, minilm_path
from .transformer import TransformerEncoder

__all__ = ["Encoder", "EncoderConfig", "TransformerEncoder", "build_encoder", "minilm_path", "row_dropout"]
