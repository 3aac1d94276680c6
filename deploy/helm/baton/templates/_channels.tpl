{{/* How processes reach each other: certificates and Redis. */}}

{{/* The parts that `baton certs` knows, and whether they serve. JSON. */}}
{{- define "baton.tls.parts" -}}
{{- dict "router" true "worker" true "gateway" true "redis" true "client" false "operator" false | toJson -}}
{{- end }}

{{/* The Secret with a part's certificate: (dict "root" $ "part" NAME). */}}
{{- define "baton.tls.secret" -}}
{{- if eq .root.Values.tls.mode "secrets" -}}
{{- get .root.Values.tls.secrets .part -}}
{{- else -}}
{{- include "baton.fullname" .root }}-tls-{{ .part -}}
{{- end -}}
{{- end }}

{{- define "baton.tls.volume" -}}
{{- if ne .root.Values.tls.mode "none" }}
- name: tls
  secret: {secretName: {{ include "baton.tls.secret" . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- define "baton.tls.mount" -}}
{{- if ne .Values.tls.mode "none" }}
- {name: tls, mountPath: /tls, readOnly: true}
{{- end }}
{{- end }}

{{/* The flags of routers and workers. */}}
{{- define "baton.tls.flags" -}}
{{- if eq .Values.tls.mode "none" }}
- --insecure-listen
{{- else }}
- --tls-ca
- /tls/ca.crt
- --tls-cert
- /tls/tls.crt
- --tls-key
- /tls/tls.key
{{- end }}
{{- end }}

{{/* (dict "root" $ "redis" VALUES "name" SERVICE): the flags; the URL of a Secret is in the environment. */}}
{{- define "baton.redis.flags" -}}
{{- if .redis.builtIn.enabled }}
- --redis
- {{ ternary "redis" "rediss" (eq .root.Values.tls.mode "none") }}://{{ include "baton.fullname" .root }}-{{ .name }}:6379/0
{{- else }}
- --redis
- {{ .redis.url | default "$(REDIS_URL)" | quote }}
{{- end }}
{{- if .redis.passwordSecret.name }}
- --redis-password-file
- /redis-password/password
{{- end }}
{{- if .redis.caSecret.name }}
- --redis-ca
- /redis-ca/ca.crt
{{- end }}
{{- end }}

{{- define "baton.redis.env" -}}
{{- if .urlSecret.name }}
- name: REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ .urlSecret.name }}, key: {{ .urlSecret.key }}}}
{{- end }}
{{- end }}

{{- define "baton.redis.mounts" -}}
{{- if .passwordSecret.name }}
- {name: redis-password, mountPath: /redis-password, readOnly: true}
{{- end }}
{{- if .caSecret.name }}
- {name: redis-ca, mountPath: /redis-ca, readOnly: true}
{{- end }}
{{- end }}

{{- define "baton.redis.volumes" -}}
{{- with .passwordSecret }}
{{- if .name }}
- name: redis-password
  secret: {secretName: {{ .name }}, defaultMode: 0440, items: [{key: {{ .key }}, path: password}]}
{{- end }}
{{- end }}
{{- with .caSecret }}
{{- if .name }}
- name: redis-ca
  secret: {secretName: {{ .name }}, items: [{key: {{ .key }}, path: ca.crt}]}
{{- end }}
{{- end }}
{{- end }}

{{/* The names and addresses in a part's certificate, beside its role's. A JSON list. */}}
{{- define "baton.tls.names" -}}
{{- $services := dict "router" (list "router" "routers") "gateway" (list "gateway" "gateways") "redis" (list "redis" "redis-gateway") -}}
{{- $names := list "localhost" "127.0.0.1" -}}
{{- $root := .root -}}
{{- range get $services .part | default list -}}
{{- $names = concat $names (include "baton.hosts" (dict "root" $root "name" .) | fromJsonArray) -}}
{{- end -}}
{{- if has .part (list "router" "gateway") -}}
{{- $names = concat $names .root.Values.tls.hosts -}}
{{- end -}}
{{- $names | toJson -}}
{{- end }}
