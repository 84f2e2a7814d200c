{{/* SPDX-License-Identifier: Apache-2.0

refitd as a container. Paste `refit.sidecar` into initContainers (nativeSidecar: true) or into containers (false).
*/}}

{{/* Bytes that refitd takes: pages are charged to who touches them first, and that is refitd. */}}
{{- define "refit.memoryBytes" -}}
{{- $overhead := include "refit.bytes" (dict "of" "weights.overhead" "quantity" .Values.weights.overhead) | int64 -}}
{{- if eq (include "refit.memory" .) "host" -}}
{{- add $overhead (mul (int64 .Values.engine.ranks) (int64 .Values.weights.slots) (include "refit.slotBytes" . | int64)) -}}
{{- else -}}
{{- add $overhead (include "refit.bytes" (dict "of" "gpu.staging" "quantity" .Values.gpu.staging) | int64) -}}
{{- end -}}
{{- end -}}

{{/* Where slots are: on the GPUs that refitd shares with a native engine, unless told otherwise. */}}
{{- define "refit.memory" -}}
{{- default (ternary "cuda" "host" (and (ne .Values.gpu.mode "none") (eq .Values.engine.kind "native"))) .Values.weights.memory -}}
{{- end -}}

{{- define "refit.slotBytes" -}}
{{- include "refit.bytes" (dict "of" "weights.slotBytes" "quantity" .Values.weights.slotBytes) -}}
{{- end -}}

{{- define "refit.resources" -}}
{{- $r := deepCopy .Values.sidecar.resources -}}
{{- $memory := default (include "refit.memoryBytes" .) (dig "limits" "memory" "" $r) | toString -}}
{{- $limits := mergeOverwrite (dict) (default (dict) $r.limits) (dict "memory" $memory) -}}
{{- $requests := mergeOverwrite (dict "memory" $memory) (default (dict) $r.requests) -}}
{{- $out := dict "requests" $requests "limits" $limits -}}
{{- if eq .Values.gpu.mode "dra" -}}{{- $_ := set $out "claims" (list (dict "name" "refit-gpus")) -}}{{- end -}}
{{- toYaml $out -}}
{{- end -}}

{{- define "refit.securityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
privileged: false
readOnlyRootFilesystem: true
runAsGroup: 10000
runAsNonRoot: true
runAsUser: {{ int64 .Values.sidecar.uid }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Options of refitd as an ordered list of "name=value"; one source for arguments and for the environment of refit exec. */}}
{{- define "refit.optionList" -}}
{{- $v := .Values -}}
{{- $s := $v.sidecar -}}
{{- $o := list -}}
{{- $o = append $o (printf "control=%s:%d" (include "refit.bracketed" $s.control.host) (int64 $s.control.port)) -}}
{{- $o = append $o (printf "admin=0.0.0.0:%d" (int64 $s.admin.port)) -}}
{{- $o = append $o (printf "data=0.0.0.0:%d" (int64 $s.data.port)) -}}
{{- $o = append $o (printf "advertise=%s" (default "$(POD_IP)" $s.advertise)) -}}
{{- $o = append $o "socket=/run/refit/refitd.sock" -}}
{{- $o = append $o (printf "ranks=%d" (int64 $v.engine.ranks)) -}}
{{- $o = append $o (printf "slots=%d" (int64 $v.weights.slots)) -}}
{{- $o = append $o (printf "slot-bytes=%s" (include "refit.slotBytes" .)) -}}
{{- $o = append $o (printf "memory=%s" (include "refit.memory" .)) -}}
{{- if and (eq $v.gpu.mode "exec") (eq (include "refit.memory" .) "host") -}}{{- $o = append $o "protection=seal" -}}{{- end -}}
{{- if $v.weights.checkpoints.volume -}}{{- $o = append $o (printf "checkpoint-root=%s" $v.weights.checkpoints.mountPath) -}}{{- end -}}
{{- with $v.weights.initial -}}
{{- if .checkpoint -}}
{{- $o = concat $o (list (printf "initial-checkpoint=%s" .checkpoint) (printf "initial-version=%d" (int64 .version)) (printf "initial-label=%s" .label)) -}}
{{- end -}}
{{- end -}}
{{- with $s.rate -}}{{- $o = append $o (printf "rate=%s" (include "refit.bytes" (dict "of" "sidecar.rate" "quantity" .))) -}}{{- end -}}
{{- $o = append $o (printf "nice=%d" (int64 $s.nice)) -}}
{{- with int64 $s.readyMinVersion -}}{{- $o = append $o (printf "ready-min-version=%d" .) -}}{{- end -}}
{{- $o = append $o (printf "drain-timeout=%ds" (int64 $s.drainSeconds)) -}}
{{- $o = append $o (printf "log-level=%s" $s.logLevel) -}}
{{- $o = append $o (printf "log-format=%s" $s.logFormat) -}}
{{- if ne $v.tls.mode "none" -}}
{{- $o = concat $o (list "tls-cert=/etc/refit/tls/tls.crt" "tls-key=/etc/refit/tls/tls.key") -}}
{{- if $v.tls.clientAuth -}}{{- $o = append $o "tls-client-ca=/etc/refit/tls/ca.crt" -}}{{- end -}}
{{- if and $v.tls.clientAuth $v.auth.tokens.secret -}}{{- $o = append $o "tls-client-optional=true" -}}{{- end -}}
{{- if $v.tls.data -}}
{{- $o = append $o (printf "data-tls-name=%s" (default (printf "%s-replicas.%s.svc" (include "refit.fullname" .) .Release.Namespace) $v.tls.dataName)) -}}
{{- else -}}
{{- $o = append $o "data-tls=off" -}}
{{- end -}}
{{- end -}}
{{- if $v.auth.tokens.secret -}}{{- $o = append $o "token-file=/etc/refit/tokens/tokens" -}}{{- end -}}
{{- if not (include "refit.isLoopback" $s.control.host) -}}
{{- if not (include "refit.isAuthenticated" .) -}}{{- $o = append $o "insecure-control=true" -}}{{- end -}}
{{- if and $v.auth.tokens.secret (eq $v.tls.mode "none") -}}{{- $o = append $o "insecure-plaintext-tokens=true" -}}{{- end -}}
{{- end -}}
{{- if ne $v.engine.kind "native" -}}
{{- $o = append $o (printf "engine=%s=http://127.0.0.1:%d" $v.engine.kind (int64 $v.engine.port)) -}}
{{- $o = concat $o (list (printf "layout=%s" $v.engine.driver.layout) "engine-dir=/run/refit-weights") -}}
{{- if eq $v.engine.kind "vllm" -}}{{- $o = append $o (printf "engine-load=%s" $v.engine.driver.load) -}}{{- end -}}
{{- end -}}
{{- $o = concat $o (include "refit.siblingOptions" . | fromJsonArray) -}}
{{- range $name, $value := $s.options -}}{{- $o = append $o (printf "%s=%s" $name (toString $value)) -}}{{- end -}}
{{- $o | toJson -}}
{{- end -}}

{{/* The other pods, by the name that their certificates hold. */}}
{{- define "refit.siblingOptions" -}}
{{- $o := list -}}
{{- $s := .Values.sidecar -}}
{{- $secure := ne .Values.tls.mode "none" -}}
{{- if and $s.siblings.enabled (not (include "refit.isLoopback" $s.control.host)) -}}
{{- $name := printf "%s-replicas.%s.svc" (include "refit.fullname" .) .Release.Namespace -}}
{{- $o = append $o (printf "siblings=dns:%s%s:%d" (ternary "https://" "" $secure) $name (int64 $s.control.port)) -}}
{{- $o = append $o (printf "siblings-poll=%s" $s.siblings.poll) -}}
{{- if and $secure .Values.tls.clientAuth -}}
{{- $o = concat $o (list "siblings-cacert=/etc/refit/tls/ca.crt" "siblings-cert=/etc/refit/tls/tls.crt" "siblings-key=/etc/refit/tls/tls.key") -}}
{{- end -}}
{{- if .Values.auth.tokens.secret -}}{{- $o = append $o "siblings-token-file=/etc/refit/tokens/tokens" -}}{{- end -}}
{{- end -}}
{{- $o | toJson -}}
{{- end -}}

{{- define "refit.bracketed" -}}
{{- if contains ":" . -}}[{{ . }}]{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{- define "refit.podIpEnv" -}}
{{- if not .Values.sidecar.advertise -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- end -}}
{{- end -}}

{{- define "refit.ports" -}}
- name: refit-control
  containerPort: {{ .Values.sidecar.control.port }}
- name: refit-admin
  containerPort: {{ .Values.sidecar.admin.port }}
- name: refit-data
  containerPort: {{ .Values.sidecar.data.port }}
{{- end -}}

{{/* Liveness ignores engine, trainers and draining; readiness counts for the pod: a version is served here. */}}
{{- define "refit.probes" -}}
{{- $port := int64 .Values.sidecar.admin.port -}}
{{- $startup := .Values.sidecar.startup -}}
startupProbe:
  httpGet: {path: /startupz, port: {{ $port }}}
  periodSeconds: {{ $startup.periodSeconds }}
  timeoutSeconds: 2
  failureThreshold: {{ max 1 (div (int64 $startup.limitSeconds) (int64 $startup.periodSeconds)) }}
livenessProbe:
  httpGet: {path: /livez, port: {{ $port }}}
  timeoutSeconds: 5
  {{- toYaml .Values.sidecar.liveness | nindent 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: {{ $port }}}
  timeoutSeconds: 2
  {{- toYaml .Values.sidecar.readiness | nindent 2 }}
{{- end -}}

{{/* Seconds between the pod's end being asked for and the last kill. */}}
{{- define "refit.terminationGracePeriodSeconds" -}}
{{- add (int64 .Values.engine.terminationSeconds) (int64 .Values.sidecar.drainSeconds) 5 -}}
{{- end -}}

{{/* Asked first, with the engine still at work: no new refit begins, readiness ends, and SIGTERM waits for the engine. */}}
{{- define "refit.preStop" -}}
preStop:
  exec:
    command: [/opt/refit/bin/refit, drain, --admin, "127.0.0.1:{{ int64 .Values.sidecar.admin.port }}", --timeout, "{{ int64 .Values.engine.terminationSeconds }}s"]
{{- end -}}

{{/* The sidecar as a list item. */}}
{{- define "refit.sidecar" -}}
{{- include "refit.check" . -}}
- name: refitd
  image: {{ include "refit.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- if .Values.nativeSidecar }}
  restartPolicy: Always
  {{- end }}
  command: [/opt/refit/bin/refitd]
  args:
    {{- range include "refit.optionList" . | fromJsonArray }}
    - {{ printf "--%s" . | quote }}
    {{- end }}
  {{- with include "refit.podIpEnv" . }}
  env:
    {{- . | nindent 4 }}
  {{- end }}
  ports:
    {{- include "refit.ports" . | nindent 4 }}
  {{- include "refit.probes" . | nindent 2 }}
  lifecycle:
    {{- include "refit.preStop" . | nindent 4 }}
  resources:
    {{- include "refit.resources" . | nindent 4 }}
  securityContext:
    {{- include "refit.securityContext" . | nindent 4 }}
  volumeMounts:
    - {name: refit-run, mountPath: /run/refit}
    {{- with include "refit.secretMounts" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* What refitd mounts wherever it runs. */}}
{{- define "refit.secretMounts" -}}
{{- if .Values.sharedMemory.size }}
- {name: refit-shm, mountPath: /dev/shm}
{{- end }}
{{- if ne .Values.tls.mode "none" }}
- {name: refit-tls, mountPath: /etc/refit/tls, readOnly: true}
{{- end }}
{{- if .Values.auth.tokens.secret }}
- {name: refit-tokens, mountPath: /etc/refit/tokens, readOnly: true}
{{- end }}
{{- if ne .Values.engine.kind "native" }}
- {name: refit-weights, mountPath: /run/refit-weights}
{{- end }}
{{- if .Values.weights.checkpoints.volume }}
- {name: refit-checkpoints, mountPath: {{ .Values.weights.checkpoints.mountPath }}, readOnly: true}
{{- end }}
{{- end -}}
