#!/bin/bash
# Has the Envoy of this machine (or container) take no new connections, and returns when all requests
# that it has open have ended, after which SIGTERM cuts nothing:
#
#   docker compose exec haproxy bash /etc/envoy/drain.sh
#
# Whoever calls it bounds the wait. ADMIN_PORT: of Envoy's admin listener, 9901.  GRACE: seconds in
# which it isn't ready any more, but still open for whoever hasn't noticed, 5.
set -euo pipefail

ask() {
    exec 3<>"/dev/tcp/127.0.0.1/${ADMIN_PORT:-9901}"
    printf '%s HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n' "$1" >&3
    cat <&3
    exec 3>&-
}

# It says that it isn't ready, and with each answer that its connection ends.
ask 'POST /healthcheck/fail' > /dev/null
sleep "${GRACE:-5}"
# Not ?graceful: that stays open for --drain-time-s, 600 s, and doesn't say when it has closed.
ask 'POST /drain_listeners' > /dev/null
# A connection that is still open may begin another request: one moment without any isn't the end.
idle=0
while ((idle < 3)); do
    sleep 1
    answer=$(ask 'GET /stats?filter=^http.clients.downstream_rq_active$')
    if [[ "$answer" =~ _active:\ 0([^0-9]|$) ]]; then ((idle += 1)); else idle=0; fi
done
