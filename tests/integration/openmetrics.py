# SPDX-License-Identifier: BSD-2-Clause
"""A strict reader of OpenMetrics 1.0 text: what its grammar and its rules for families do not allow is a
failure. Timestamps and exemplars, which lien does not write, are not allowed either."""

import re

from lien_test import check, equal

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
META = re.compile(r"# (TYPE|UNIT|HELP) (%s) (.*)" % NAME)
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
SAMPLE = re.compile(r"(%s)(\{.*\})? (\S+)" % NAME)
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|\+Inf|-Inf|NaN")
SUFFIXES = {"gauge": [""], "counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"], "info": ["_info"]}
ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class Family:
    def __init__(self, name):
        self.name, self.type, self.unit, self.help = name, None, None, None
        self.samples = {}  # (suffix, labels sorted) -> value

    def __getitem__(self, labels):
        """The value of the only sample with these labels among its own."""
        found = self.having(**labels)
        check(len(found) == 1, "%s with %s: %s" % (self.name, labels, found))
        return found[0]

    def having(self, suffix=None, **labels):
        return [value for (name, pairs), value in self.samples.items()
                if set(labels.items()) <= set(pairs) and suffix in (None, name)]


def labels_of(text):
    if not text:
        return ()
    inner, at, pairs = text[1:-1], 0, []
    while at < len(inner):
        match = LABEL.match(inner, at)
        check(match, "labels: %s" % text)
        pairs.append((match[1], re.sub(r"\\.", lambda m: ESCAPES[m[0]], match[2])))
        at = match.end()
        if at < len(inner):
            check(inner[at] == "," and at + 1 < len(inner), "labels: %s" % text)
            at += 1
    equal(len({name for name, _ in pairs}), len(pairs), "names of labels that differ")
    return tuple(sorted(pairs))


def read(text):
    """The families by name."""
    check(text.endswith("# EOF\n"), "no # EOF at the end: %r" % text[-60:])
    families, family, sealed = {}, None, False
    for line in text.split("\n")[:-2]:
        meta = META.fullmatch(line)
        if meta:
            kind, name, rest = meta.groups()
            if not family or family.name != name:
                check(name not in families, "family %s is in two places" % name)
                family = families[name] = Family(name)
                sealed = False
            check(not sealed, "metadata behind samples: %s" % line)
            equal(getattr(family, kind.lower()), None, "a second %s of %s" % (kind, name))
            check(rest or kind == "UNIT", line)
            setattr(family, kind.lower(), rest)
            continue
        match = SAMPLE.fullmatch(line)
        check(match, "no sample: %r" % line)
        name, labels, value = match.groups()
        check(NUMBER.fullmatch(value), line)
        check(family and family.type in SUFFIXES, "no type before %s" % line)
        suffix = name[len(family.name):]
        check(name.startswith(family.name) and suffix in SUFFIXES[family.type], "not of %s: %s" % (family.name, line))
        key = suffix, labels_of(labels)
        check(key not in family.samples, "twice: %s" % line)
        family.samples[key] = float(value)
        sealed = True
    for family in families.values():
        check_family(family)
    names = [name + suffix for name, f in families.items() for suffix in {"", *SUFFIXES[f.type]}]
    equal(len(set(names)), len(names), "families whose samples could be mixed up")
    return families


def check_family(family):
    check(family.help, "%s has no help" % family.name)
    if family.unit:
        check(family.name.endswith("_" + family.unit), "%s: unit %s" % (family.name, family.unit))
    for unit in ("bytes", "seconds"):
        equal(family.name.endswith("_" + unit), family.unit == unit, "%s: unit %s" % (family.name, unit))
    for (_, labels), value in family.samples.items():
        check(family.type == "gauge" or value >= 0, "%s is negative" % family.name)
        if family.type != "histogram":
            check("le" not in dict(labels), family.name)
    if family.type == "histogram":
        check_histograms(family)


def check_histograms(family):
    series = {}
    for (suffix, labels), value in family.samples.items():
        rest = tuple(pair for pair in labels if pair[0] != "le")
        one = series.setdefault(rest, {"_bucket": []})
        if suffix == "_bucket":
            bound = dict(labels)["le"]
            check(bound == "+Inf" or "." in bound or "e" in bound, "not canonical: le=%s" % bound)
            one["_bucket"].append((float(bound), value))
        else:
            one[suffix] = value
    for rest, one in series.items():
        bounds = [bound for bound, _ in one["_bucket"]]
        counts = [count for _, count in one["_bucket"]]
        check(bounds == sorted(set(bounds)) and bounds[-1] == float("inf"), family.name, rest, bounds)
        equal(counts, sorted(counts), "%s: buckets are cumulative" % family.name)
        equal(one["_count"], counts[-1], "%s: count" % family.name)
        check("_sum" in one, family.name)
