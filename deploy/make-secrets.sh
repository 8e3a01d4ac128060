#!/bin/sh
# Makes the files in secrets/ that compose.yaml reads, where they are not there yet. The key of the model is asked for.
set -eu
umask 077
cd "$(dirname "$0")"
mkdir -p secrets
for name in postgres_password database_password ops_key; do
    # Hexadecimal digits: the password of the database stands in a URL.
    [ -s "secrets/$name" ] || od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "secrets/$name"
done
if [ ! -s secrets/openai_api_key ]; then
    printf 'The API key of OpenAI: ' >&2
    read -r key
    printf '%s' "$key" > secrets/openai_api_key
fi
# The users inside the containers are others than the one who runs this; the folder keeps everybody else out.
chmod 0444 secrets/*
echo "The secrets are in $(pwd)/secrets. Programs and people authenticate with the key in ops_key." >&2
