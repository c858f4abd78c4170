{{- /* What goes in front of cells: for each program that cellBalancer.program may name its default image, its
       file, what the container runs, and how it leaves. */ -}}
{{- define "penstock.balancerFile" -}}
{{ ternary "cells.yaml" "cells.cfg" (eq .Values.cellBalancer.program "envoy") }}
{{- end -}}

{{- /* HOST:PORT of a cell's gateways: dict "root" $ "cell" 0. */ -}}
{{- define "penstock.cellAddress" -}}
{{- printf "%s-gateway:%s" (include "penstock.cellName" .) (toYaml .root.Values.gateway.service.port) -}}
{{- end -}}

{{- define "penstock.balancerConfig.haproxy" -}}
{{- .Files.Get "files/cells.cfg" -}}
{{- end -}}

{{- define "penstock.balancerContainer.haproxy" -}}
image: {{ default "haproxy:3.0" .Values.cellBalancer.image | quote }}
command: [haproxy]
args: [-W, -db, -f, /etc/balancer/cells.cfg]
env:
  {{- range .Values.cells | int | until }}
  - name: PENSTOCK_CELL_{{ add . 1 }}
    value: {{ include "penstock.cellAddress" (dict "root" $ "cell" .) | quote }}
  {{- end }}
  - {name: PENSTOCK_CELL_LOAD, value: {{ .Values.cellBalancer.load | quote }}}
  - {name: PENSTOCK_HARD_STOP, value: "{{ .Values.gateway.shutdownTimeout }}s"}
# The image says that it is stopped by SIGUSR1, which lets what is open end.
lifecycle:
  preStop:
    sleep: {seconds: {{ .Values.gateway.preStopSeconds }}}
{{- end -}}

{{- /* The file that is tested, with its load and its endpoints replaced. */ -}}
{{- define "penstock.balancerConfig.envoy" -}}
{{- $file := replace "hash_balance_factor: 200" (printf "hash_balance_factor: %s" (toYaml .Values.cellBalancer.load)) (.Files.Get "files/cells.yaml") -}}
{{- first (splitList "          - lb_endpoints: # of the cells" $file) }}          - lb_endpoints:
{{- range .Values.cells | int | until }}
              - endpoint:
                  hostname: cell{{ add . 1 }}
                  address:
                    socket_address:
                      address: {{ include "penstock.cellName" (dict "root" $ "cell" .) }}-gateway
                      port_value: {{ $.Values.gateway.service.port }}
{{- end }}
{{- end -}}

{{- define "penstock.balancerContainer.envoy" -}}
image: {{ default "envoyproxy/envoy:v1.40.0" .Values.cellBalancer.image | quote }}
command: [envoy]
args: [--config-path, /etc/balancer/cells.yaml, --disable-hot-restart]
# SIGTERM cuts what is open, so it comes when nothing is, or when the grace period is over.
lifecycle:
  preStop:
    exec:
      command: [bash, -c, "sleep {{ .Values.gateway.preStopSeconds }}; exec bash /etc/balancer/drain.sh"]
{{- end -}}
