"""Dictionary learning on streams: sparse autoencoders, one for each stream, all learned at once.

    dictionary = srmlab.dictionaries.learn(model, batches.batch, steps=500)
    found      = srmlab.dictionaries.quality(model, dictionary, evaluation)     # explained, recovered, alive
    features   = srmlab.dictionaries.features(model, dictionary, evaluation)    # examples, promoted tokens
    srmlab.dictionaries.save(dictionary, "dictionaries/last"); srmlab.dictionaries.load("dictionaries/last")
    hooks      = srmlab.dictionaries.hold_features(dictionary, [(3, 17, 0.0)])  # what if it were silent?

Results are of the kind that the analyses give, with named axes, saved as npz + JSON; those of `quality` have
standard errors.
"""

from srmlab.analysis.interventions import hold_features
from srmlab.dictionaries.dictionary import Dictionary, DictionaryConfig, load, save
from srmlab.dictionaries.features import Features, features
from srmlab.dictionaries.learning import learn
from srmlab.dictionaries.lexicon import Lexicon, lexicons_of
from srmlab.dictionaries.page import write_page
from srmlab.dictionaries.quality import Quality, quality

__all__ = [
    "Dictionary",
    "DictionaryConfig",
    "Features",
    "Lexicon",
    "Quality",
    "features",
    "hold_features",
    "learn",
    "lexicons_of",
    "load",
    "quality",
    "save",
    "write_page",
]
