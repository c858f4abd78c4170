#!/bin/sh
# The last step of every image's environment: Penstock itself, the kernels if a folder is given, and
# nothing that never runs.
set -eu
python -m pip --python /opt/penstock/bin/python install --no-deps /dist/*.whl
# Plug-ins know which Penstock they go with; what they need besides comes in versions that go with ours.
# shellcheck disable=SC2086
[ -z "${PLUGINS:-}" ] || python -m pip --python /opt/penstock/bin/python install -c constraints.txt ${PLUGINS}
site=$(echo /opt/penstock/lib/python3*/site-packages)
[ -z "${1:-}" ] || cp -r "$1"/. "$site"/
# Libraries' own tests. numpy.testing reads one file of them.
find "$site" -path '*/tests/*' -type f ! -name _natype.py ! -path '*/torch/*' -delete
# Compiled here, since the root is read-only later; checked by nothing, since nothing changes. torch's
# own tests are partly written for later Pythons.
/opt/penstock/bin/python -m compileall -q -j 0 -x /torch/testing/ --invalidation-mode unchecked-hash "$site"
