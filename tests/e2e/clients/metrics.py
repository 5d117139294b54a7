"""Reads a monitor's metrics with the parser of prometheus_client and prints each sample as JSON."""

import json
import sys
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families

with urllib.request.urlopen(sys.argv[1], timeout=60) as reply:
    kind = reply.headers["Content-Type"]
    text = reply.read().decode()

families = list(text_string_to_metric_families(text))
print(
    json.dumps(
        {
            "content_type": kind,
            "families": {
                family.name: [family.type, family.unit, family.documentation] for family in families
            },
            "samples": [
                {"name": sample.name, "labels": sample.labels, "value": sample.value}
                for family in families
                for sample in family.samples
            ],
        }
    )
)
