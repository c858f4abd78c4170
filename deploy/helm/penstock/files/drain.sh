#!/bin/bash
# Has the Envoy of this machine (or container) take no new connections, and returns when all requests
# that it has open have ended, after which SIGTERM cuts nothing:
#
#   docker compose exec haproxy bash /etc/envoy/drain.sh
#
# Whoever calls it bounds the wait. ADMIN_PORT: of Envoy's admin listener, 9901.
set -euo pipefail

ask() {
    exec 3<>"/dev/tcp/127.0.0.1/${ADMIN_PORT:-9901}"
    printf '%s HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n' "$1" >&3
    cat <&3
    exec 3>&-
}

ask 'POST /drain_listeners' > /dev/null
until ask 'GET /stats?filter=^http.clients.downstream_rq_active$' | grep -q '_active: 0'; do
    sleep 1
done
