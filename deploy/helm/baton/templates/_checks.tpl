{{/* Values that contradict each other. values.schema.json has checked each for itself. Every message names the field. */}}

{{- define "baton.checks" -}}
{{- include "baton.checks.model" . -}}
{{- include "baton.checks.pools" . -}}
{{- include "baton.checks.drains" . -}}
{{- include "baton.checks.picker" . -}}
{{- include "baton.checks.services" . -}}
{{- include "baton.checks.redis" (dict "root" $ "redis" .Values.redis "field" "redis" "required" true) -}}
{{- if .Values.gateway.enabled -}}
{{- include "baton.checks.redis" (dict "root" $ "redis" .Values.gateway.redis "field" "gateway.redis" "required" false) -}}
{{- end -}}
{{- include "baton.checks.tls" . -}}
{{- include "baton.checks.secrets" (dict "value" .Values "field" "values") -}}
{{- include "baton.checks.present" . -}}
{{- end }}

{{- define "baton.checks.model" -}}
{{- $model := .Values.model -}}
{{- if not $model.name -}}
{{- fail "model.name is missing; accepted: what clients call the model, with one of model.inImage, model.pvc, model.hostPath, model.image, model.init and model.hub" -}}
{{- end -}}
{{- range $field, $own := merge (dict "model" $model "router.model" .Values.router.model) (include "baton.checks.modelsOfPools" . | fromJson) -}}
{{- if $own -}}
{{- if ne ($own.name | default $model.name) $model.name -}}
{{- fail (printf "%s.name is %q, but model.name is %q; accepted: one model in a release, since all workers of a fleet serve the same" $field $own.name $model.name) -}}
{{- end -}}
{{- $source := include "baton.model.source" (dict "model" $own "field" $field) -}}
{{- if and (eq $source "hub") (not (contains "/" $model.name)) -}}
{{- fail (printf "%s.hub is set, but model.name is %q; accepted: the model's name on the hub, ORG/NAME" $field $model.name) -}}
{{- end -}}
{{- if and (ne $source "hub") (contains "/" $model.name) -}}
{{- fail (printf "%s.%s is set, but model.name is %q; accepted: %s.hub, since only the hub's names have a slash" $field $source $model.name $field) -}}
{{- end -}}
{{- if and (eq $source "hub") (ne $own.hub.revision (dig "hub" "revision" $own.hub.revision $model)) -}}
{{- fail (printf "%s.hub.revision is %s, but model.hub.revision is %s; accepted: the same, since all workers of a fleet serve the same" $field $own.hub.revision $model.hub.revision) -}}
{{- end -}}
{{- if and (eq $source "hub") (ne ($own.hub.file | default "") ($model.hub.file | default "")) -}}
{{- fail (printf "%s.hub.file is %q, but model.hub.file is %q; accepted: the same, since all workers of a fleet serve the same" $field ($own.hub.file | default "") ($model.hub.file | default "")) -}}
{{- end -}}
{{- with ($own.hub | default dict).cache -}}
{{- if and .claim .hostPath -}}
{{- fail (printf "%s.hub.cache has claim and hostPath; accepted: one of them" $field) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $source "inImage") (ne (base $own.inImage) $model.name) -}}
{{- fail (printf "%s.inImage is %q, but model.name is %q; accepted: a folder of that name" $field $own.inImage $model.name) -}}
{{- end -}}
{{- if and (eq $source "image") (semverCompare "<1.33.0-0" $.Capabilities.KubeVersion.Version) -}}
{{- fail (printf "%s.image is set, but Kubernetes %s has no image volumes; accepted: 1.33 with the feature gate ImageVolume, 1.35 without, or another source" $field $.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "baton.checks.modelsOfPools" -}}
{{- $found := dict -}}
{{- range $name, $pool := .Values.pools -}}
{{- $_ := set $found (printf "pools.%s.model" $name) ($pool.model | default dict) -}}
{{- end -}}
{{- $found | toJson -}}
{{- end }}

{{- define "baton.checks.pools" -}}
{{- $roles := list -}}
{{- $gpus := list -}}
{{- range $name, $pool := .Values.pools -}}
{{- if has $name (list "router" "gateway" "redis" "redis-gateway" "controller" "picker") -}}
{{- fail (printf "pools.%s has the name of another part; accepted: any other name" $name) -}}
{{- end -}}
{{- range $flag, $value := $pool.flags -}}
{{- if has $flag (list "policy" "timed" "block-size" "dtype" "quantisation" "deterministic" "prove-model" "random-weights") -}}
{{- fail (printf "pools.%s.flags.%s is set, but all workers of a fleet must share it; accepted: fleet.flags.%s" $name $flag $flag) -}}
{{- end -}}
{{- end -}}
{{- if and ($pool.rdma | default dict).count (not $pool.rdma.resource) -}}
{{- fail (printf "pools.%s.rdma.resource is missing; accepted: the name of the device plugin's resource, such as rdma/hca" $name) -}}
{{- end -}}
{{- $flags := $pool.flags | default dict -}}
{{- $onGpu := gt (int (($pool.gpu | default dict).count | default 0)) 0 -}}
{{- if and (eq ($flags.device | default "auto") "cuda") (not $onGpu) -}}
{{- fail (printf "pools.%s.flags.device is cuda, but pools.%s.gpu.count is 0; accepted: a count of 1 or more" $name $name) -}}
{{- end -}}
{{- if and ($pool.kvDisk | default dict).storageClass (semverCompare "<1.23.0-0" $.Capabilities.KubeVersion.Version) -}}
{{- fail (printf "pools.%s.kvDisk.storageClass is set, but Kubernetes %s makes no claims for pods; accepted: 1.23 or newer, or no storageClass" $name $.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and $pool.kvDisk (or $flags.timed $.Values.fleet.flags.timed) -}}
{{- fail (printf "pools.%s.kvDisk is set, but its workers are timed; accepted: workers that compute" $name) -}}
{{- end -}}
{{- $host := int64 (index $flags "kv-host-memory-mb" | default 0) -}}
{{- if and (gt $host 0) (or $flags.timed $.Values.fleet.flags.timed) -}}
{{- fail (printf "pools.%s.flags.kv-host-memory-mb is %d, but its workers are timed; accepted: 0, or workers that compute" $name $host) -}}
{{- end -}}
{{- if and (eq ($flags.transport | default "auto") "shm") (not ($pool.sharedMemory | default $.Values.sharedMemory).hostPath) -}}
{{- fail (printf "pools.%s.flags.transport is shm, but pods meet in no folder; accepted: sharedMemory.hostPath, or another transport" $name) -}}
{{- end -}}
{{- if eq ($flags.transport | default "auto") "cuda_ipc" -}}
{{- fail (printf "pools.%s.flags.transport is cuda_ipc, but pods do not share the memory of a GPU; accepted: auto, shm, nixl or grpc" $name) -}}
{{- end -}}
{{- $limit := (($pool.resources).limits).memory -}}
{{- $most := include "baton.megabytes" $limit | int64 -}}
{{- $kv := int64 (index $flags "kv-memory-mb" | default 0) -}}
{{- if and $limit (gt $most 0) (gt $host 0) $onGpu (ge $host $most) -}}
{{- fail (printf "pools.%s.flags.kv-host-memory-mb is %d, but pools.%s.resources.limits.memory is %v; accepted: less than that, since handoffs need memory too" $name $host $name $limit) -}}
{{- end -}}
{{- if and $limit (gt $most 0) (gt $host 0) (not $onGpu) (ge (add $kv $host) $most) -}}
{{- fail (printf "pools.%s.flags.kv-host-memory-mb is %d beside a kv-memory-mb of %d, but pools.%s.resources.limits.memory is %v; accepted: less than that together, since weights need memory too" $name $host $kv $name $limit) -}}
{{- end -}}
{{- if and $limit (gt $most 0) (not $onGpu) (ge $kv $most) -}}
{{- fail (printf "pools.%s.flags.kv-memory-mb is %d, but pools.%s.resources.limits.memory is %v; accepted: less than that, since weights need memory too" $name $kv $name $limit) -}}
{{- end -}}
{{- $strategy := $pool.strategy | default (dict "maxSurge" 1) -}}
{{- if and (eq (toString $strategy.maxSurge) "0") (eq (toString $strategy.maxUnavailable) "0") -}}
{{- fail (printf "pools.%s.strategy has maxSurge 0 and maxUnavailable 0; accepted: one of them above 0" $name) -}}
{{- end -}}
{{- with $pool.scaling -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail (printf "pools.%s.scaling.minReplicas is %d, but maxReplicas is %d; accepted: at most that" $name (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- range $other, $another := $.Values.pools -}}
{{- if and (ne $other $name) (eq $another.role $pool.role) -}}
{{- fail (printf "pools.%s.scaling is set, but pools.%s has role %s too; accepted: one pool of a role that is scaled, since routers count the workers of a role" $name $other $pool.role) -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.router.door.secret (not $.Values.tls.requireClientCertificates) -}}
{{- fail (printf "tls.requireClientCertificates is false, but pools.%s.scaling and router.door.secret are set; accepted: true, since KEDA proves by its certificate that it may ask" $name) -}}
{{- end -}}
{{- end -}}
{{- $roles = append $roles $pool.role -}}
{{- $gpus = append $gpus (gt (int (($pool.gpu | default dict).count | default 0)) 0) -}}
{{- end -}}
{{- if not (has "decode" $roles) -}}
{{- fail "pools has no pool with role decode; accepted: at least one" -}}
{{- end -}}
{{- if and (has true $gpus) (has false $gpus) (eq (.Values.fleet.flags.dtype | default "auto") "auto") -}}
{{- fail "fleet.flags.dtype is auto, but pools with and without gpu would choose different types; accepted: float32, float64 or bfloat16" -}}
{{- end -}}
{{- end }}

{{- define "baton.checks.drains" -}}
{{- $parts := dict "router" .Values.router "gateway" .Values.gateway "picker" .Values.picker -}}
{{- range $name, $pool := .Values.pools -}}
{{- $_ := set $parts (printf "pools.%s" $name) $pool -}}
{{- end -}}
{{- range $field, $part := $parts -}}
{{- if dig "enabled" true $part -}}
{{- $drain := include "baton.drain" (dict "root" $ "part" $part) | fromJson -}}
{{- $least := add (ceil $drain.seconds) (ternary 0 $drain.preStopSeconds (hasPrefix "pools." $field)) 5 -}}
{{- if lt (int $drain.graceSeconds) (int $least) -}}
{{- $where := ternary "drain" (printf "%s.drain" $field) (empty $part.drain) -}}
{{- fail (printf "%s.graceSeconds is %v for %s; accepted: at least %d, 5 more than its drain takes, or the kubelet kills what still runs" $where $drain.graceSeconds $field (int $least)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "baton.checks.picker" -}}
{{- if and .Values.picker.enabled (not .Values.gateway.enabled) -}}
{{- fail "picker.enabled is set, but gateway.enabled is false; accepted: true, since the picker picks among gateways" -}}
{{- end -}}
{{- if and .Values.picker.inferencePool.enabled (not .Values.picker.enabled) -}}
{{- fail "picker.inferencePool.enabled is set, but picker.enabled is false; accepted: true, since the pool names the picker" -}}
{{- end -}}
{{- end }}

{{- define "baton.checks.services" -}}
{{- $since := dict "PreferClose" "1.31" "PreferSameZone" "1.34" "PreferSameNode" "1.34" -}}
{{- range $field, $part := dict "router" .Values.router "gateway" .Values.gateway -}}
{{- with $part.service.trafficDistribution -}}
{{- if semverCompare (printf "<%s.0-0" (get $since .)) $.Capabilities.KubeVersion.Version -}}
{{- fail (printf "%s.service.trafficDistribution is %s, but Kubernetes %s does not know it; accepted: %s or newer, or none" $field . $.Capabilities.KubeVersion.Version (get $since .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "baton.checks.redis" -}}
{{- $set := list -}}
{{- if .redis.builtIn.enabled }}{{ $set = append $set (printf "%s.builtIn.enabled" .field) }}{{ end -}}
{{- if .redis.url }}{{ $set = append $set (printf "%s.url" .field) }}{{ end -}}
{{- if .redis.urlSecret.name }}{{ $set = append $set (printf "%s.urlSecret.name" .field) }}{{ end -}}
{{- if gt (len $set) 1 -}}
{{- fail (printf "%s are set; accepted: one of them" (join " and " $set)) -}}
{{- end -}}
{{- if and .required (empty $set) -}}
{{- fail (printf "%s has no source; accepted: one of %s.builtIn.enabled, %s.url and %s.urlSecret.name" .field .field .field .field) -}}
{{- end -}}
{{- $own := .redis.builtIn -}}
{{- $limit := (($own.resources).limits).memory -}}
{{- $most := include "baton.megabytes" $limit | int64 -}}
{{- if and $own.enabled (gt $most 0) (ge (include "baton.megabytes" $own.maxmemory | int64) $most) -}}
{{- fail (printf "%s.builtIn.maxmemory is %s, but %s.builtIn.resources.limits.memory is %v; accepted: less than that, or the kernel kills Redis first" .field $own.maxmemory .field $limit) -}}
{{- end -}}
{{- $secured := ne .root.Values.tls.mode "none" -}}
{{- if and $secured (hasPrefix "redis://" .redis.url) -}}
{{- fail (printf "%s.url is %q, in the clear, but tls.mode is %s; accepted: rediss://" .field .redis.url .root.Values.tls.mode) -}}
{{- end -}}
{{- if and (not $secured) (hasPrefix "rediss://" .redis.url) (not .redis.caSecret.name) -}}
{{- fail (printf "%s.caSecret.name is missing, but %s.url asks for TLS; accepted: a Secret with the CA of that Redis" .field .field) -}}
{{- end -}}
{{- end }}

{{- define "baton.checks.tls" -}}
{{- $tls := .Values.tls -}}
{{- if and (eq $tls.mode "certManager") (not $tls.certManager.issuer.name) -}}
{{- fail "tls.certManager.issuer.name is missing, but tls.mode is certManager; accepted: the name of an Issuer, or of a ClusterIssuer with its kind" -}}
{{- end -}}
{{- if and (ne $tls.mode "certManager") $tls.certManager.issuer.name -}}
{{- fail (printf "tls.certManager.issuer.name is set, but tls.mode is %s; accepted: certManager" $tls.mode) -}}
{{- end -}}
{{- if and $tls.requireClientCertificates (eq $tls.mode "none") -}}
{{- fail "tls.requireClientCertificates is set, but tls.mode is none; accepted: certManager, hook or secrets" -}}
{{- end -}}
{{- $needed := list "router" "worker" -}}
{{- if .Values.gateway.enabled }}{{ $needed = append $needed "gateway" }}{{ end -}}
{{- if or .Values.redis.builtIn.enabled (and .Values.gateway.enabled .Values.gateway.redis.builtIn.enabled) }}{{ $needed = append $needed "redis" }}{{ end -}}
{{- if .Values.monitoring.serviceMonitor.enabled }}{{ $needed = append $needed "client" }}{{ end -}}
{{- range $pool := .Values.pools }}{{ if $pool.scaling }}{{ $needed = append $needed "operator" }}{{ end }}{{ end -}}
{{- range $part, $secret := $tls.secrets -}}
{{- if and (eq $tls.mode "secrets") (not $secret) (has $part $needed) -}}
{{- fail (printf "tls.secrets.%s is missing, but tls.mode is secrets; accepted: a Secret with tls.crt, tls.key and ca.crt" $part) -}}
{{- end -}}
{{- if and (ne $tls.mode "secrets") $secret -}}
{{- fail (printf "tls.secrets.%s is set, but tls.mode is %s; accepted: secrets" $part $tls.mode) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.router.door.secret (eq $tls.mode "none") -}}
{{- fail "router.door.secret is set, but tls.mode is none, so others could read the keys; accepted: certManager, hook or secrets" -}}
{{- end -}}
{{- end }}

{{/* Values are stored with the release and shown by `helm get values`: no secret belongs there. */}}
{{- define "baton.checks.secrets" -}}
{{- $field := .field -}}
{{- if kindIs "map" .value -}}
{{- if and (hasKey .value "name") (hasKey .value "value") -}}
{{- if regexMatch "(?i)passw|secret|token|api_?key|credential" (toString .value.name) -}}
{{- fail (printf "%s.value holds %s; accepted: valueFrom with a secretKeyRef" $field .value.name) -}}
{{- end -}}
{{- end -}}
{{- range $key, $value := .value -}}
{{- include "baton.checks.secrets" (dict "value" $value "field" (ternary $key (printf "%s.%s" $field $key) (eq $field "values"))) -}}
{{- end -}}
{{- else if kindIs "slice" .value -}}
{{- range $index, $value := .value -}}
{{- include "baton.checks.secrets" (dict "value" $value "field" (printf "%s[%d]" $field $index)) -}}
{{- end -}}
{{- else if kindIs "string" .value -}}
{{- if regexMatch "://[^/@\\s]*:[^/@\\s]+@" .value -}}
{{- fail (printf "%s holds a password; accepted: a URL without one, and the password in a Secret" $field) -}}
{{- end -}}
{{- if regexMatch "-----BEGIN [A-Z ]*PRIVATE KEY" .value -}}
{{- fail (printf "%s holds a private key; accepted: the name of a Secret" $field) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Secrets that the release needs exist, with their keys. `helm template` has no cluster to ask, and finds none missing. */}}
{{- define "baton.checks.present" -}}
{{- $needed := list -}}
{{- range $field, $redis := dict "redis" .Values.redis "gateway.redis" .Values.gateway.redis -}}
{{- if or (eq $field "redis") $.Values.gateway.enabled -}}
{{- range list "urlSecret" "passwordSecret" "caSecret" -}}
{{- $secret := get $redis . -}}
{{- $needed = append $needed (dict "field" (printf "%s.%s.name" $field .) "name" $secret.name "keys" (list $secret.key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $needed = append $needed (dict "field" "router.door.secret" "name" .Values.router.door.secret "keys" (list .Values.router.door.key)) -}}
{{- range $field, $own := merge (dict "model" .Values.model "router.model" .Values.router.model) (include "baton.checks.modelsOfPools" . | fromJson) -}}
{{- with ($own.hub | default dict).token -}}
{{- $needed = append $needed (dict "field" (printf "%s.hub.token.secret" $field) "name" .secret "keys" (list (.key | default "token"))) -}}
{{- end -}}
{{- end -}}
{{- $needed = append $needed (dict "field" "gateway.apiKey.secret" "name" .Values.gateway.apiKey.secret "keys" (list .Values.gateway.apiKey.key)) -}}
{{- range $part, $name := .Values.tls.secrets -}}
{{- $needed = append $needed (dict "field" (printf "tls.secrets.%s" $part) "name" $name "keys" (list "tls.crt" "tls.key" "ca.crt")) -}}
{{- end -}}
{{- if lookup "v1" "ServiceAccount" .Release.Namespace "default" -}}
{{- range $secret := $needed -}}
{{- if .name -}}
{{- $found := lookup "v1" "Secret" $.Release.Namespace .name -}}
{{- if not $found -}}
{{- fail (printf "%s is %q, but the namespace %s has no such Secret; accepted: one with %s" .field .name $.Release.Namespace (join ", " .keys)) -}}
{{- end -}}
{{- range $key := .keys -}}
{{- if not (hasKey ($found.data | default dict) $key) -}}
{{- fail (printf "%s is %q, but that Secret has no key %s; accepted: one with %s" $secret.field $secret.name $key $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
