{{/* SPDX-License-Identifier: Apache-2.0

What the engine's container and its pod need. The engine joins the sidecar's group (10000), which owns the socket.
*/}}

{{/* volumeMounts of the engine. */}}
{{- define "refit.engineMounts" -}}
{{- if eq .Values.gpu.mode "exec" -}}
- {name: refit-program, mountPath: /opt/refit, readOnly: true}
- {name: refit-run, mountPath: /run/refit}
{{- include "refit.secretMounts" . }}
{{- else -}}
- {name: refit-run, mountPath: /run/refit, readOnly: true}
{{- if ne .Values.engine.kind "native" }}
- {name: refit-weights, mountPath: /run/refit-weights, readOnly: true}
{{- end }}
{{- if .Values.sharedMemory.size }}
- {name: refit-shm, mountPath: /dev/shm}
{{- end }}
{{- end }}
{{- end -}}

{{/* env of the engine. */}}
{{- define "refit.engineEnv" -}}
- name: REFIT_SOCKET
  value: /run/refit/refitd.sock
{{- if eq .Values.gpu.mode "exec" }}
{{- with include "refit.podIpEnv" . }}
{{ . }}
{{- end }}
{{- range include "refit.optionList" . | fromJsonArray }}
{{- $pair := splitn "=" 2 . }}
{{- if ne $pair._0 "socket" }}
- name: REFIT_{{ $pair._0 | upper | replace "-" "_" }}
  value: {{ $pair._1 | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* resources of the engine: yours, and with gpu.mode dra the claim that the sidecar shares. */}}
{{- define "refit.engineResources" -}}
{{- $r := deepCopy .Values.engine.resources -}}
{{- if eq .Values.gpu.mode "dra" -}}
{{- $_ := set $r "claims" (append (default (list) $r.claims) (dict "name" "refit-gpus")) -}}
{{- end -}}
{{- toYaml $r -}}
{{- end -}}

{{/* Volumes of the pod. */}}
{{- define "refit.volumes" -}}
- name: refit-run
  emptyDir: {}
{{- if eq .Values.gpu.mode "exec" }}
- name: refit-program
  emptyDir: {}
{{- end }}
{{- if ne .Values.engine.kind "native" }}
- name: refit-weights
  {{- toYaml .Values.engine.driver.volume | nindent 2 }}
{{- end }}
{{- if .Values.sharedMemory.size }}
- name: refit-shm
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.sharedMemory.size }}}
{{- end }}
{{- if ne .Values.tls.mode "none" }}
- name: refit-tls
  secret:
    secretName: {{ ternary .Values.tls.secret (printf "%s-tls" (include "refit.fullname" .)) (eq .Values.tls.mode "secret") }}
    defaultMode: 0440
    optional: false
{{- end }}
{{- with .Values.auth.tokens }}
{{- if .secret }}
- name: refit-tokens
  secret:
    secretName: {{ .secret }}
    items: [{key: {{ .key }}, path: tokens}]
    defaultMode: 0440
    optional: false
{{- end }}
{{- end }}
{{- with .Values.weights.checkpoints.volume }}
- name: refit-checkpoints
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* resourceClaims of the pod (gpu.mode dra). */}}
{{- define "refit.resourceClaims" -}}
{{- if eq .Values.gpu.mode "dra" -}}
- name: refit-gpus
  resourceClaimTemplateName: {{ default (printf "%s-gpus" (include "refit.fullname" .)) .Values.gpu.claimTemplate }}
{{- end -}}
{{- end -}}

{{/* tolerations of the pod. A ResourceClaim does not add the GPU's, as a device plugin's resource does. */}}
{{- define "refit.tolerations" -}}
{{- $t := .Values.tolerations -}}
{{- if eq .Values.gpu.mode "dra" -}}
{{- $t = append $t (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule") -}}
{{- end -}}
{{- if $t -}}{{- toYaml $t -}}{{- end -}}
{{- end -}}

{{/* securityContext of the pod. */}}
{{- define "refit.podSecurityContext" -}}
runAsNonRoot: true
fsGroup: 10000
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* securityContext of the engine's container. */}}
{{- define "refit.engineSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
privileged: false
readOnlyRootFilesystem: {{ .Values.engine.readOnlyRootFilesystem }}
runAsGroup: 10000
runAsNonRoot: true
runAsUser: {{ int64 .Values.engine.uid }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* gpu.mode exec: brings refit, refitd and their libraries to /opt/refit of the engine's container. */}}
{{- define "refit.install" -}}
{{- include "refit.check" . -}}
- name: refit-install
  image: {{ include "refit.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/opt/refit/bin/refit, exec, --install, /install]
  resources:
    requests: {cpu: 100m, memory: 64Mi}
    limits: {memory: 64Mi}
  securityContext:
    {{- include "refit.securityContext" . | nindent 4 }}
  volumeMounts:
    - {name: refit-program, mountPath: /install}
{{- end -}}

{{/* The engine's command under gpu.mode exec: first the engine is asked to end, then refitd. */}}
{{- define "refit.execCommand" -}}
- /opt/refit/bin/refit
- exec
- --grace
- {{ printf "%ds" (int64 .Values.engine.terminationSeconds) | quote }}
- --refitd-grace
- {{ printf "%ds" (int64 .Values.sidecar.drainSeconds) | quote }}
- --
{{ toYaml .Values.engine.command }}
{{- end -}}

{{- define "refit.engineProbe" -}}
{{- if eq .kind "native" -}}
tcpSocket: {port: engine}
{{- else -}}
httpGet: {path: /health, port: engine}
{{- end }}
{{- end -}}

{{- define "refit.engine" -}}
{{- $e := .Values.engine -}}
- name: {{ $e.name }}
  image: {{ include "refit.engineImage" . }}
  imagePullPolicy: {{ $e.image.pullPolicy }}
  {{- if eq .Values.gpu.mode "exec" }}
  command:
    {{- include "refit.execCommand" . | nindent 4 }}
  {{- else if $e.command }}
  command:
    {{- toYaml $e.command | nindent 4 }}
  {{- end }}
  {{- with $e.args }}
  args:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  env:
    {{- include "refit.engineEnv" . | nindent 4 }}
    {{- with $e.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - {name: engine, containerPort: {{ $e.port }}}
    {{- if eq .Values.gpu.mode "exec" }}
    {{- include "refit.ports" . | nindent 4 }}
    {{- end }}
  startupProbe:
    {{- if $e.startupProbe }}
    {{- toYaml $e.startupProbe | nindent 4 }}
    {{- else }}
    {{- include "refit.engineProbe" $e | nindent 4 }}
    periodSeconds: 2
    failureThreshold: 900
    {{- end }}
  readinessProbe:
    {{- if $e.readinessProbe }}
    {{- toYaml $e.readinessProbe | nindent 4 }}
    {{- else if eq .Values.gpu.mode "exec" }}
    httpGet: {path: /readyz, port: refit-admin}
    periodSeconds: {{ .Values.sidecar.readiness.periodSeconds }}
    failureThreshold: {{ .Values.sidecar.readiness.failureThreshold }}
    {{- else }}
    {{- include "refit.engineProbe" $e | nindent 4 }}
    periodSeconds: 2
    failureThreshold: 2
    {{- end }}
  {{- with $e.livenessProbe }}
  livenessProbe:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  resources:
    {{- include "refit.engineResources" . | nindent 4 }}
  securityContext:
    {{- include "refit.engineSecurityContext" . | nindent 4 }}
  volumeMounts:
    {{- include "refit.engineMounts" . | nindent 4 }}
    - {name: tmp, mountPath: /tmp}
    {{- with $e.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
