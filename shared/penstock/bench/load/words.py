"""Common English words, each one token of a byte-pair vocabulary with or without a space before
it (checked on SmolLM2's), so that n words make about n tokens."""

from __future__ import annotations

_TEXT = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number
night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law
car city community name president team minute idea kid body information back parent face others
level office door health person art war history party result change reason research girl moment
air teacher force education foot boy age policy music market sense nation plan college interest
death experience effect use class control field development role rate heart drug show leader
light voice wife mind price report decision son view relationship town road arm difference value
building action season tax director position player record paper space ground form event
official matter center site project activity star table need court oil cost industry figure
street image phone data picture practice piece land product doctor wall patient worker news test
movie north love support technology step baby computer type attention film tree source red blue
green small large old new long great little own other high young early big different local able
free true full clear simple open hard best known
"""
WORDS = _TEXT.split()
