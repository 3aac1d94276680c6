{{/* What the pods of all parts have in common. */}}

{{/*
Scheduling and identity of a pod: (dict "root" $ "component" NAME "part" VALUES "pool" LABELS). Only a pod with an
`account` of its own may use the API.
*/}}
{{- define "baton.pod" -}}
{{- $spread := ternary .part.spread .root.Values.spread (hasKey .part "spread") -}}
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
serviceAccountName: {{ .account | default (include "baton.serviceAccount" .root) }}
automountServiceAccountToken: {{ not (empty .account) }}
# Otherwise the kubelet sets REDIS_PORT=tcp://... and the like for every Service of the namespace.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .user | default 10001 }}
  runAsGroup: {{ .group | default 10001 }}
  fsGroup: {{ .group | default 10001 }}
  # A volume with a large model is not walked through at each start.
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .part.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .part.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- if $spread }}
topologySpreadConstraints:
{{- $labels := dict "matchLabels" (merge (dict) (include "baton.selector" . | fromYaml) (.pool | default dict)) }}
{{- range $spread }}
  - {{- toYaml (merge (dict "labelSelector" $labels) .) | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}

{{/* The name of the port with the metrics of a router's process, by its number. */}}
{{- define "baton.router.metrics" -}}
{{- ternary "metrics" (printf "metrics-%d" .) (eq . 0) -}}
{{- end }}

{{- define "baton.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* A part's drain, with the release's for what it does not say: (dict "root" $ "part" VALUES). JSON. */}}
{{- define "baton.drain" -}}
{{- merge (dict) (.part.drain | default dict) .root.Values.drain | toJson -}}
{{- end }}

{{/* Let callers forget this pod before it hears of its end. Images have no shell and no sleep. */}}
{{- define "baton.preStop" -}}
{{- if gt (int .) 0 }}
lifecycle:
  preStop:
    exec: {command: [/venv/bin/python, -c, "import time; time.sleep({{ . }})"]}
{{- end }}
{{- end }}

{{- define "baton.env" -}}
- name: POD
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
# The file system of the image cannot be written to, and its user has no home.
- {name: HOME, value: /tmp}
{{- with .env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
Ready means routable: a worker is registered and not draining, a router could run a request sent now. The kubelet's own
gRPC probe knows no TLS, and clusters before 1.24 do not have it. (dict "root" $ "port" PORT)
*/}}
{{- define "baton.readiness" -}}
{{- $secured := ne .root.Values.tls.mode "none" -}}
{{- if and (not $secured) (semverCompare ">=1.24.0-0" .root.Capabilities.KubeVersion.Version) }}
readinessProbe:
  grpc: {port: {{ .port }}}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 3
{{- else }}
readinessProbe:
  exec:
    command:
      - /venv/bin/python
      - -m
      - baton.cli
      - health
      - 127.0.0.1:{{ .port }}
{{- if $secured }}
      - --ca
      - /tls/ca.crt
      - --cert
      - /tls/tls.crt
      - --key
      - /tls/tls.key
{{- end }}
  # A process of its own, and slow where the node is short of CPU: that it is late says nothing about the service.
  periodSeconds: 10
  timeoutSeconds: 30
  failureThreshold: 6
# Each check starts a process, which would only slow the start of the one that it asks for. It ends no start, however slow.
startupProbe:
  tcpSocket: {port: {{ .port }}}
  periodSeconds: 2
  failureThreshold: 100000
{{- end }}
{{- end }}

{{/* The name of the only source that a model has: (dict "model" VALUES "field" FIELD). */}}
{{- define "baton.model.source" -}}
{{- $set := list -}}
{{- $model := .model -}}
{{- range list "inImage" "pvc" "hostPath" "image" "init" "hub" -}}
{{- if get $model . -}}
{{- $set = append $set . -}}
{{- end -}}
{{- end -}}
{{- if ne (len $set) 1 -}}
{{- fail (printf "%s has %s; accepted: exactly one of inImage, pvc, hostPath, image, init and hub" .field (ternary "no source" (join " and " $set) (empty $set))) -}}
{{- end -}}
{{- first $set -}}
{{- end }}

{{/* A part's model: its own source if it has one, else the release's. JSON with name, path, source and more. */}}
{{- define "baton.model" -}}
{{- $own := omit (.part.model | default dict) "name" -}}
{{- $model := ternary .root.Values.model $own (empty $own) -}}
{{- $field := ternary "model" (printf "%s.model" .field) (empty $own) -}}
{{- $source := include "baton.model.source" (dict "model" $model "field" $field) -}}
{{- $path := ternary $model.inImage (printf "/models/%s" .root.Values.model.name) (eq $source "inImage") -}}
{{- if eq $source "hub" }}
{{- $path = printf "%s@%s" .root.Values.model.name $model.hub.revision -}}
{{- with $model.hub.file }}{{ $path = printf "%s:%s" $path . }}{{ end -}}
{{- end -}}
{{- dict "source" $source "path" $path "of" (get $model $source) | toJson -}}
{{- end }}

{{- define "baton.model.mount" -}}
{{- if eq .source "hub" }}
- {name: model, mountPath: /hub, readOnly: true}
{{- else if ne .source "inImage" }}
- name: model
  mountPath: {{ ternary "/models" .path (eq .source "init") }}
  readOnly: true
{{- if and (eq .source "pvc") .of.subPath }}
  subPath: {{ .of.subPath }}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.model.volume" -}}
{{- if eq .source "pvc" }}
- name: model
  persistentVolumeClaim: {claimName: {{ .of.claim }}, readOnly: true}
{{- else if eq .source "hostPath" }}
- name: model
  hostPath: {path: {{ .of }}, type: Directory}
{{- else if eq .source "image" }}
- name: model
  image: {reference: {{ .of | quote }}}
{{- else if eq .source "init" }}
- name: model
  emptyDir: {{- toYaml (pick .of "sizeLimit") | nindent 4 }}
{{- else if eq .source "hub" }}
{{- $cache := .of.cache | default dict }}
- name: model
{{- if $cache.claim }}
  persistentVolumeClaim: {claimName: {{ $cache.claim }}}
{{- else if $cache.hostPath }}
  hostPath: {path: {{ $cache.hostPath }}, type: Directory}
{{- else }}
  emptyDir: {{- toYaml (pick $cache "sizeLimit") | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Only the init container asks the hub: what serves reads what that has fetched. */}}
{{- define "baton.model.env" -}}
{{- if eq .source "hub" }}
- {name: HF_HOME, value: /hub}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- end }}
{{- end }}

{{/*
What brings the model before the start: (dict "root" $ "model" MODEL "part" VALUES "image" VALUES "fetch" PROGRAM
"resources" VALUES "draft" MODEL). PROGRAM fetches a model of the hub, and leaves a path alone. The resources are
those of the container that serves, so a pod asks for no more than without it.
*/}}
{{- define "baton.model.init" -}}
{{- $of := .model.of -}}
{{- if eq .model.source "init" }}
- name: model
  image: {{ $of.image }}
{{- with $of.command }}
  command: {{- toYaml . | nindent 4 }}
{{- end }}
{{- with $of.args }}
  args: {{- toYaml . | nindent 4 }}
{{- end }}
{{- with $of.env }}
  env: {{- toYaml . | nindent 4 }}
{{- end }}
  securityContext:
    allowPrivilegeEscalation: false
    capabilities: {drop: [ALL]}
  volumeMounts:
    - {name: model, mountPath: /models}
{{- else if eq .model.source "hub" }}
{{- range $name, $path := dict "model" .model.path "draft-model" .draft }}
{{- if $path }}
- name: {{ $name }}
  image: {{ include "baton.image" $.image }}
  imagePullPolicy: {{ $.root.Values.images.pullPolicy }}
  # The sentence that says why a model was not fetched is in the status of the pod.
  terminationMessagePolicy: FallbackToLogsOnError
  args: {{- toYaml (append $.fetch $path) | nindent 4 }}
  env:
    {{- include "baton.env" $.part | nindent 4 }}
    - {name: HF_HOME, value: /hub}
    {{- with $of.endpoint }}
    - {name: HF_ENDPOINT, value: {{ . | quote }}}
    {{- end }}
    {{- with $of.token }}
    {{- if .secret }}
    - name: HF_TOKEN
      valueFrom: {secretKeyRef: {name: {{ .secret }}, key: {{ .key | default "token" }}}}
    {{- end }}
    {{- end }}
  resources: {{- toYaml $.resources | nindent 4 }}
  securityContext: {{- include "baton.confined" $ | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    - {name: model, mountPath: /hub}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
