"""Dictionary learning on streams: sparse autoencoders, one for each stream, all learned at once.

    dictionary = srm.dictionaries.learn(model, lambda step: batches.batch(step)[0], steps=500)
    found      = srm.dictionaries.quality(model, dictionary, evaluation)     # explained, recovered, alive
    features   = srm.dictionaries.features(model, dictionary, evaluation)    # examples, and tokens spoken for
    srm.dictionaries.save(dictionary, "dictionaries/last"); srm.dictionaries.load("dictionaries/last")
    hooks      = srm.dictionaries.hold_features(dictionary, [(3, 17, 0.0)])  # what if it were silent?

Results are of the kind that the analyses give, with named axes, saved as npz + JSON; those of `quality` have
standard errors.
"""

from srm.dictionaries.dictionary import Dictionary, DictionaryConfig, load, save
from srm.dictionaries.features import Features, features
from srm.dictionaries.holding import hold_features
from srm.dictionaries.learning import learn
from srm.dictionaries.lexicon import Lexicon, lexicons_of
from srm.dictionaries.page import write_page
from srm.dictionaries.quality import Quality, quality

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
