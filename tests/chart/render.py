"""Renders the Helm chart with Helm's own code, without a cluster, and checks what comes of it.

Usage: render.py CHART VALUES   (VALUES is a JSON object; the resources are printed as JSON)

Helm finds nothing odd in the chart, and each resource is one of the oldest Kubernetes that the chart allows, and of the newest
one whose schemas are there. Ends with the status 2 if the schema of the chart refuses the values.
"""

import json
import re
import sys

import helm_python
import kubernetes_validate
import yaml

CHART, VALUES = sys.argv[1], json.loads(sys.argv[2])
RELEASE, NAMESPACE = "demo", "agents"
# The severity of advice: an icon is missing.
ADVICE = 1


def check(resource, version):
    try:
        kubernetes_validate.validate(resource, version, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        # Kubernetes itself does not have the resources of KEDA.
        assert resource["apiVersion"].startswith("keda.sh/"), resource
    except kubernetes_validate.ValidationError as error:
        sys.exit(f"{resource['kind']} {resource['metadata']['name']} is not valid for Kubernetes {version}: {error}")


lint = helm_python.lint(CHART)
problems = [message for message in lint["messages"] if message["severity"] > ADVICE] + lint["errors"]
if problems:
    sys.exit(f"helm lint: {problems}")
with helm_python.Chart.load(CHART) as chart:
    try:
        chart.validate_schema(VALUES)
    except helm_python.HelmValuesError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    oldest = re.match(r">=(\d+\.\d+)", chart.metadata["kubeVersion"]).group(1)
    newest = ".".join(kubernetes_validate.latest_version().split(".")[:2])
    rendered = chart.render(VALUES, name=RELEASE, namespace=NAMESPACE)
texts = [text for path, text in sorted(rendered.items()) if path.endswith(".yaml")]
resources = [resource for text in texts for resource in yaml.safe_load_all(text) if resource]
for resource in resources:
    check(resource, oldest)
    check(resource, newest)
json.dump(resources, sys.stdout)
