{{- define "penstock.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* Of a component: dict "root" $ "component" "gateway". */ -}}
{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- /* Of an engine or worker, of each model: dict "Values" … "Release" … "Chart" … "Key" "". The first model's
       key is empty, and its objects have the names that they always had. */ -}}
{{- define "penstock.suffix" -}}
{{- with .Key }}-{{ . }}{{ end -}}
{{- end -}}

{{- /* How gateways are told of all engines. */ -}}
{{- define "penstock.endpoints" -}}
{{- $name := include "penstock.name" . -}}
{{- if .Values.moreModels -}}
{{- printf "%s=dns://%s-engine-headless:5570" (default .Values.model.name .Values.model.served) $name -}}
{{- range .Values.moreModels -}}
{{- printf ",%s=dns://%s-engine-%s-headless:5570" (default .model.name (get .model "served")) $name .key -}}
{{- end -}}
{{- else -}}
{{- printf "dns://%s-engine-headless:5570" $name -}}
{{- end -}}
{{- end -}}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
penstock/role: {{ .role }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | quote }}
{{- end -}}

{{- define "penstock.image" -}}
{{- printf "%s-%s:%s" .root.Values.image.repository .image (default .root.Chart.AppVersion .root.Values.image.tag) | quote -}}
{{- end -}}

{{- /* Where an init container puts the model, in the volume of each pod. Another model has another
       name: what an engine that runs has open stays as it is. */ -}}
{{- define "penstock.modelDir" -}}
{{- printf "/models/model-%s" (.Values.model.name | sha256sum | trunc 12) -}}
{{- end -}}

{{- define "penstock.transport" -}}
- --config=/etc/penstock/config.yaml
{{- if .Values.curve.enabled }}
- --curve-dir=/run/secrets/curve
{{- else }}
- --allow-plain-tcp
{{- end }}
{{- end -}}

{{- define "penstock.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "penstock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* What a pod has whatever it runs: dict "root" $ "component" … "role" … "image" … "values" …; role: gateway, engine
       or worker, which says whose keys it has. */ -}}
{{- define "penstock.placement" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "penstock.podSecurity" .root | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "penstock.selector" . | nindent 8 }}
{{- end -}}

{{- define "penstock.annotations" -}}
{{- if eq .role "gateway" }}
checksum/config: {{ toYaml .root.Values.config | sha256sum }}
{{- else }}
{{- /* What is the gateways' alone restarts no engine. */}}
checksum/config: {{ toYaml (get .root.Values.config "engine") | sha256sum }}
{{- end }}
{{- with .values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "penstock.commonMounts" -}}
- {name: config, mountPath: /etc/penstock, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if .Values.curve.enabled }}
- {name: curve, mountPath: /run/secrets/curve, readOnly: true}
{{- end }}
{{- end -}}

{{- define "penstock.commonVolumes" -}}
- name: config
  configMap: {name: {{ include "penstock.name" .root }}-config}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
{{- if .root.Values.curve.enabled }}
- name: curve
  secret:
    secretName: {{ include "penstock.name" .root }}-curve-{{ .role }}
    # Secret keys that everybody may read are refused; the group is fsGroup.
    defaultMode: 0440
    items:
      - {key: {{ .role }}.key_secret, path: {{ .role }}.key_secret}
      {{- if eq .role "engine" }}
      - {key: frontends.gateway.key, path: frontends/gateway.key}
      - {key: workers.worker.key, path: workers/worker.key}
      {{- else }}
      - {key: engine.key, path: engine.key}
      {{- end }}
{{- end }}
{{- end -}}

{{- define "penstock.prepare" -}}
- name: prepare
  image: {{ include "penstock.image" (dict "root" . "image" "prepare") }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - prepare
    - {{ .Values.model.name | quote }}
    - --cache-dir=/models
    - --copy-weights
    - --link={{ include "penstock.modelDir" . }}
  {{- if .Values.model.hubToken.existingSecret }}
  env:
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef:
          name: {{ .Values.model.hubToken.existingSecret }}
          key: {{ .Values.model.hubToken.key }}
  {{- end }}
  securityContext:
    {{- include "penstock.containerSecurity" . | nindent 4 }}
  resources:
    {{- toYaml .Values.model.prepareResources | nindent 4 }}
  volumeMounts:
    - {name: models, mountPath: /models}
    - {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "penstock.sharedModels" -}}
- name: models
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-models" (include "penstock.name" .)) .Values.model.storage.existingClaim }}
{{- end -}}

{{- define "penstock.ownModels" -}}
persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}
volumeClaimTemplates:
  - metadata: {name: models}
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .Values.model.storage.storageClass }}
      storageClassName: {{ . }}
      {{- end }}
      resources:
        requests: {storage: {{ .Values.model.storage.size }}}
{{- end -}}

{{- /* Health of an engine or worker: dict "port" … "startup" seconds. */ -}}
{{- define "penstock.probes" -}}
startupProbe:
  httpGet: {path: /health/live, port: metrics}
  periodSeconds: 5
  failureThreshold: {{ div .startup 5 }}
livenessProbe:
  httpGet: {path: /health/live, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /health/ready, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
{{- end -}}

{{- /* Workers of each engine. */ -}}
{{- define "penstock.ranks" -}}
{{- mul (int .Values.ranks.tensor) (int .Values.ranks.pipeline) -}}
{{- end -}}

{{- define "penstock.rankSuffix" -}}
{{- if gt .ranks 1 }}-{{ .rank }}{{ end -}}
{{- end -}}

{{- /* Who may ask, of all that clients' requests come to. */ -}}
{{- define "penstock.access" -}}
{{- if .Values.apiKeys.existingSecret -}}
- --api-keys=/run/secrets/api-keys/{{ .Values.apiKeys.key }}
{{- else -}}
- --allow-open
{{- with include "penstock.hosts" . | trimPrefix "," }}
- --allowed-hosts={{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Names of the gateways' Service in the cluster, and public ones, each with a comma in front. */ -}}
{{- define "penstock.hosts" -}}
{{- $own := printf "%s-gateway" (include "penstock.name" .) -}}
{{- $entrance := default (include "penstock.entrance" .) (get .Values "entrance") -}}
{{- $namespace := .Release.Namespace -}}
{{- range (ternary (list $own) (list $own $entrance) (eq $own $entrance)) -}}
{{- $own := printf "%s.%s" . $namespace -}}
,{{ . }},{{ $own }},{{ $own }}.svc,{{ $own }}.svc.cluster.local
{{- end -}}
{{- if and .Values.ingress.enabled .Values.ingress.host }},{{ .Values.ingress.host }}{{ end -}}
{{- if .Values.httpRoute.enabled }}{{ range .Values.httpRoute.hostnames }},{{ . }}{{ end }}{{ end -}}
{{- end -}}

{{- define "penstock.accessMounts" -}}
{{- if .Values.apiKeys.existingSecret }}
- {name: api-keys, mountPath: /run/secrets/api-keys, readOnly: true}
{{- end }}
{{- end -}}

{{- define "penstock.accessVolumes" -}}
{{- if .Values.apiKeys.existingSecret }}
- name: api-keys
  secret:
    secretName: {{ .Values.apiKeys.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- /* Files, batches and kept responses: where they lie. */ -}}
{{- define "penstock.storageArgs" -}}
{{- if .Values.storage.enabled }}
- --data-dir=/data
- --database-url={{ required "storage.enabled needs storage.databaseUrl: SQLite's locks don't hold between nodes" .Values.storage.databaseUrl }}
- --stored-response-hours={{ .Values.storage.responseHours }}
{{- with .Values.storage.s3 }}
{{- if .url }}
- --files-url={{ .url }}
{{- if .endpointUrl }}
- --s3-endpoint-url={{ .endpointUrl }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "penstock.storageEnv" -}}
{{- if .Values.storage.enabled }}
{{- with .Values.storage.databasePassword }}
{{- if .existingSecret }}
- name: PGPASSWORD
  valueFrom:
    secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}
{{- end }}
{{- end }}
{{- with .Values.storage.s3 }}
{{- if .region }}
- {name: AWS_DEFAULT_REGION, value: {{ quote .region }}}
{{- end }}
{{- with .credentials }}
{{- if .existingSecret }}
- name: AWS_ACCESS_KEY_ID
  valueFrom:
    secretKeyRef: {name: {{ .existingSecret }}, key: {{ .idKey }}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom:
    secretKeyRef: {name: {{ .existingSecret }}, key: {{ .secretKey }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "penstock.storageMounts" -}}
{{- if .Values.storage.enabled }}
- {name: data, mountPath: /data}
{{- end }}
{{- end -}}

{{- define "penstock.storageVolumes" -}}
{{- if .Values.storage.enabled }}
- name: data
  {{- if .Values.storage.s3.url }}
  # What is on its way to the store.
  emptyDir: {sizeLimit: {{ .Values.storage.size }}}
  {{- else }}
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-data" (include "penstock.name" .)) .Values.storage.existingClaim }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* Components that dial engines. */ -}}
{{- define "penstock.fronts" -}}
gateway{{ if .Values.grpc.enabled }} grpc{{ end }}{{ if .Values.storage.enabled }} batches{{ end }}
{{- end -}}

{{- /* All components: what has pods. */ -}}
{{- define "penstock.components" -}}
{{- include "penstock.fronts" . }} engine worker
{{- range .Values.moreModels }} engine-{{ .key }} worker-{{ .key }}{{ end }}
{{- end -}}

{{- /* The beginning of the names of a cell's objects: dict "root" $ "cell" 0. Those of the first are the release's own. */ -}}
{{- define "penstock.cellName" -}}
{{- $name := include "penstock.name" .root -}}
{{- if gt .cell 0 -}}
{{- printf "%s-cell-%s" ($name | trunc 32 | trimSuffix "-") (add .cell 1 | toYaml) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{- /* The Service that clients' requests come to. */ -}}
{{- define "penstock.entrance" -}}
{{- printf "%s-%s" (include "penstock.name" .) (ternary "cells" "gateway" (gt (int .Values.cells) 1)) -}}
{{- end -}}
