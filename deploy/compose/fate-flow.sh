#!/bin/sh
# Sets up a FATE Flow of the party PARTY_ID, whose jobs go through the gateway, and runs it; or runs what it is given.
set -eu
[ "$#" = 0 ] || exec "$@"
home=/data/flow
package=$(python -c 'import importlib.util as u; print(u.find_spec("fate_flow").submodule_search_locations[0])')
# also where the home is there: it writes into the installed package, which is new in a new container
rm -rf "$home/conf"
fate_flow init --ip 127.0.0.1 --port 9380 --home "$home"
python - "$home/conf/service_conf.yaml" "$PARTY_ID" <<'PYTHON'
import sys

import yaml

path, party = sys.argv[1:]
with open(path) as file:
    conf = yaml.safe_load(file)
conf["party_id"] = party
with open(path, "w") as file:
    yaml.safe_dump(conf, file)
PYTHON
rm -f "$home/conf/local.service_conf.yaml"
lines=$(fedrdma fate config --home "$home" --gateway /etc/fedrdma/gateway.yaml --engine osx)
printf '%s\n' "$lines" > "$home/conf/local.service_conf.yaml"
mkdir -p "$home/logs"
exec python "$package/fate_flow_server.py"
