"""Dictionary learning on streams: one SAE (sparse autoencoder) per stream, all trained at once.

    dictionary = srmlab.dictionaries.learn(model, batches.batch, steps=500)
    found      = srmlab.dictionaries.quality(model, dictionary, evaluation)     # explained, recovered, alive
    features   = srmlab.dictionaries.features(model, dictionary, evaluation)    # examples, promoted tokens
    srmlab.dictionaries.save(dictionary, "dictionaries/last"); srmlab.dictionaries.load("dictionaries/last")
    hooks      = srmlab.dictionaries.hold_features(dictionary, [(3, 17, 0.0)])  # what if it did not fire?
    switches   = srmlab.dictionaries.switches(model, dictionary, evaluation)    # why routing switches

Transcoders map a step function's input to its output, one for all depths:

    transcoders = srmlab.dictionaries.learn(model, batches.batch, of="mlp", steps=500)
    srmlab.dictionaries.transcoder_quality(model, transcoders, evaluation)

Results are of the kind that the analyses give, with named axes, saved as npz + JSON; those of `quality` have
standard errors.
"""

from srmlab.analysis.interventions import hold_features
from srmlab.dictionaries.circuit import Graph, Target, attribute
from srmlab.dictionaries.curve import Curve, curve
from srmlab.dictionaries.dictionary import Dictionary, DictionaryConfig, load, save
from srmlab.dictionaries.features import Features, features
from srmlab.dictionaries.learning import learn
from srmlab.dictionaries.lexicon import Lexicon, lexicons_of
from srmlab.dictionaries.page import write_page
from srmlab.dictionaries.pairs import EdgeLogit
from srmlab.dictionaries.quality import Quality, quality
from srmlab.dictionaries.switches import Switches, switches
from srmlab.dictionaries.transcoder import (
    Transcoder,
    TranscoderConfig,
    Transcoders,
    load_transcoders,
    save_transcoders,
)
from srmlab.dictionaries.transcoder_quality import TranscoderQuality, transcoder_quality
from srmlab.dictionaries.transcoding import splice
from srmlab.dictionaries.translations import Translations, translations

__all__ = [
    "Curve",
    "Dictionary",
    "DictionaryConfig",
    "EdgeLogit",
    "Features",
    "Graph",
    "Lexicon",
    "Quality",
    "Switches",
    "Target",
    "Transcoder",
    "TranscoderConfig",
    "TranscoderQuality",
    "Transcoders",
    "Translations",
    "attribute",
    "curve",
    "features",
    "hold_features",
    "learn",
    "lexicons_of",
    "load",
    "load_transcoders",
    "quality",
    "save",
    "save_transcoders",
    "splice",
    "switches",
    "transcoder_quality",
    "translations",
    "write_page",
]
