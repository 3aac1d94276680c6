{{/* Names, labels and images. */}}

{{/* It contains `baton`, by which Prometheus' rules know the jobs. */}}
{{- define "baton.fullname" -}}
{{- $release := .Release.Name | trunc 26 | trimSuffix "-" -}}
{{- ternary $release (printf "%s-baton" $release) (contains "baton" $release) -}}
{{- end }}

{{/* The labels by which a part's pods are found, which never change: (dict "root" $ "component" NAME). */}}
{{- define "baton.selector" -}}
app.kubernetes.io/name: baton
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The labels of an object. Pods have those of the selector alone, so that a new chart restarts none. */}}
{{- define "baton.labels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/part-of: baton
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "baton.metadata" -}}
name: {{ include "baton.fullname" .root }}-{{ .name | default .component }}
namespace: {{ .root.Release.Namespace }}
labels: {{- include "baton.labels" . | nindent 2 }}
{{- end }}

{{- define "baton.image" -}}
{{- $name := .repository -}}
{{- if .digest -}}
{{ $name }}@{{ .digest }}
{{- else -}}
{{ $name }}:{{ .tag | default .default }}
{{- end -}}
{{- end }}

{{- define "baton.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "baton.fullname" .) -}}
{{- end }}

{{/* The names at which a Service is reached: (dict "root" $ "name" NAME). A JSON list. */}}
{{- define "baton.hosts" -}}
{{- $service := printf "%s-%s" (include "baton.fullname" .root) .name -}}
{{- $inNamespace := printf "%s.%s" $service .root.Release.Namespace -}}
{{- list $service $inNamespace (printf "%s.svc" $inNamespace) (printf "%s.svc.cluster.local" $inNamespace) | toJson -}}
{{- end }}

{{/* Command-line flags of a map without dashes, as items of a YAML list. False leaves a flag out. */}}
{{- define "baton.flags" -}}
{{- range $flag, $value := . }}
{{- if kindIs "bool" $value }}
{{- if $value }}
- --{{ $flag }}
{{- end }}
{{- else if kindIs "slice" $value }}
{{- range $value }}
- --{{ $flag }}
- {{ . | quote }}
{{- end }}
{{- else }}
- --{{ $flag }}
- {{ include "baton.number" $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* The megabytes of a quantity such as 8Gi, 500M or 128mb, rounded down; 0 if it is written otherwise. */}}
{{- define "baton.megabytes" -}}
{{- $units := dict "Mi" 1 "M" 1 "mb" 1 "Gi" 1024 "G" 1000 "gb" 1024 "Ti" 1048576 "T" 1000000 -}}
{{- $unit := regexFind "[A-Za-z]+$" (toString .) -}}
{{- mul (get $units $unit | default 0) (regexFind "^[0-9]+" (toString .) | int64) -}}
{{- end }}

{{/* Numbers of values are floats; large ones must not be written with an exponent. */}}
{{- define "baton.number" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}
{{- int64 . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end }}
