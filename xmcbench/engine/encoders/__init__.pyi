from .build import build_encoder
from .dropout import row_dropout
from .encoder import Encoder
from .settings import EncoderConfig
from .transformer import TransformerEncoder
from .words import minilm_path

__all__ = ["Encoder", "EncoderConfig", "TransformerEncoder", "build_encoder", "minilm_path", "row_dropout"]
