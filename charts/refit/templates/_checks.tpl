{{/* SPDX-License-Identifier: Apache-2.0

What can't be said in values.schema.json: things that belong together. Each message names the value and what to do.
*/}}
{{- define "refit.check" -}}
{{- include "refit.checkCapacity" . -}}
{{- include "refit.checkGpu" . -}}
{{- include "refit.checkControl" . -}}
{{- include "refit.checkEngine" . -}}
{{- end -}}

{{- define "refit.checkCapacity" -}}
{{- if not .Values.weights.slotBytes -}}
{{- fail "weights.slotBytes: no capacity for weights; set the bytes of one slot on one rank, such as 16Gi (docs/operations.md has a table)" -}}
{{- end -}}
{{- $needed := include "refit.memoryBytes" . | int64 -}}
{{- with (dig "limits" "memory" "" .Values.sidecar.resources) -}}
{{- $limit := include "refit.bytes" (dict "of" "sidecar.resources.limits.memory" "quantity" .) | int64 -}}
{{- if lt $limit $needed -}}
{{- fail (printf "sidecar.resources.limits.memory: %v (%d bytes) is below what refitd takes (%d bytes: ranks x slots x weights.slotBytes + weights.overhead, or gpu.staging + weights.overhead); it would be killed in a loop. Raise it, or leave it empty" . $limit $needed) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* With gpu.mode exec refitd's memory is the engine's container's. */}}
{{- define "refit.checkExecMemory" -}}
{{- with (dig "limits" "memory" "" .Values.engine.resources) -}}
{{- $limit := include "refit.bytes" (dict "of" "engine.resources.limits.memory" "quantity" .) | int64 -}}
{{- $needed := include "refit.memoryBytes" $ | int64 -}}
{{- if lt $limit $needed -}}
{{- fail (printf "engine.resources.limits.memory: %v (%d bytes) is below what refitd takes in this container (%d bytes: slots or gpu.staging, + weights.overhead), engine not counted" . $limit $needed) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" when resources ask a device plugin for GPUs. */}}
{{- define "refit.hasDevicePluginGpu" -}}
{{- $found := false -}}
{{- range $of := list "limits" "requests" -}}
{{- range $name, $count := (dig $of (dict) $) -}}
{{- if and (regexMatch "/(gpu|mig-.*|.*gpu.*)$" $name) (ne (toString $count) "0") -}}{{- $found = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if $found -}}true{{- end -}}
{{- end -}}

{{- define "refit.checkGpu" -}}
{{- $inSidecar := include "refit.hasDevicePluginGpu" .Values.sidecar.resources -}}
{{- $inEngine := include "refit.hasDevicePluginGpu" .Values.engine.resources -}}
{{- if and $inSidecar $inEngine -}}
{{- fail "sidecar.resources and engine.resources both ask a device plugin for GPUs: each container would get another GPU. Use gpu.mode=dra (one ResourceClaim for both) or gpu.mode=exec (refitd in the engine's container)" -}}
{{- end -}}
{{- if $inSidecar -}}
{{- fail "sidecar.resources: a device plugin's GPU would be another one than the engine's. Use gpu.mode=dra or gpu.mode=exec" -}}
{{- end -}}
{{- if and (eq .Values.gpu.mode "dra") $inEngine -}}
{{- fail "engine.resources asks a device plugin for GPUs while gpu.mode is dra: leave them to the ResourceClaim" -}}
{{- end -}}
{{- if and (eq .Values.gpu.mode "exec") (not $inEngine) -}}
{{- fail "gpu.mode is exec, but engine.resources asks for no GPU (such as limits: {nvidia.com/gpu: 1})" -}}
{{- end -}}
{{- if eq .Values.weights.memory "cuda" -}}
{{- if eq .Values.gpu.mode "none" -}}
{{- fail "weights.memory is cuda while gpu.mode is none: refitd would have no GPU. Use gpu.mode=dra or gpu.mode=exec" -}}
{{- end -}}
{{- if ne .Values.engine.kind "native" -}}
{{- fail (printf "weights.memory is cuda, but refitd keeps the slots of %s in host memory" .Values.engine.kind) -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.gpu.mode "dra") (not .Values.gpu.claimTemplate) (eq (include "refit.memory" .) "cuda") (gt (int64 .Values.engine.ranks) (int64 .Values.gpu.count)) -}}
{{- fail (printf "gpu.count: %d GPUs for %d ranks: each rank's slots are on a GPU of its own" (int64 .Values.gpu.count) (int64 .Values.engine.ranks)) -}}
{{- end -}}
{{- if and (eq .Values.gpu.mode "none") $inEngine (eq .Values.engine.kind "native") -}}
{{- fail "engine.resources asks a device plugin for GPUs while gpu.mode is none: refitd could not reach them. Use gpu.mode=exec, or gpu.mode=dra" -}}
{{- end -}}
{{- end -}}

{{- define "refit.isLoopback" -}}
{{- if or (hasPrefix "127." .) (eq . "::1") -}}true{{- end -}}
{{- end -}}

{{/* "true" when whoever calls the control API has to show who he is. */}}
{{- define "refit.isAuthenticated" -}}
{{- if or .Values.auth.tokens.secret (and (ne .Values.tls.mode "none") .Values.tls.clientAuth) -}}true{{- end -}}
{{- end -}}

{{- define "refit.checkControl" -}}
{{- $beyond := not (include "refit.isLoopback" .Values.sidecar.control.host) -}}
{{- if and $beyond (not (include "refit.isAuthenticated" .)) (not .Values.auth.insecure) -}}
{{- fail (printf "sidecar.control.host: %s is reachable beyond loopback without authentication. Set auth.tokens.secret, or tls.mode with tls.clientAuth, or (anyone in reach may then change what is served) auth.insecure=true" .Values.sidecar.control.host) -}}
{{- end -}}
{{- if and $beyond .Values.auth.tokens.secret (eq .Values.tls.mode "none") (not .Values.auth.plaintextTokens) -}}
{{- fail "auth.tokens.secret: tokens would travel in the clear. Set tls.mode, or (whoever can read the network has the tokens then) auth.plaintextTokens=true" -}}
{{- end -}}
{{- if and (eq .Values.tls.mode "secret") (not .Values.tls.secret) -}}
{{- fail "tls.mode is secret, but tls.secret names none" -}}
{{- end -}}
{{- if and (eq .Values.tls.mode "certManager") (not .Values.tls.certManager.issuer) -}}
{{- fail "tls.mode is certManager, but tls.certManager.issuer names none" -}}
{{- end -}}
{{- end -}}

{{- define "refit.checkEngine" -}}
{{- if eq .Values.gpu.mode "exec" -}}{{- include "refit.checkExecMemory" . -}}{{- end -}}
{{- if and .Values.workload (not .Values.engine.image.repository) -}}
{{- fail "engine.image.repository: the example release needs an engine; set its image, or workload=false to use the named templates only" -}}
{{- end -}}
{{- if and .Values.workload (eq .Values.gpu.mode "exec") (not .Values.engine.command) -}}
{{- fail "engine.command: gpu.mode=exec starts the engine with `refit exec`, which can't read the image's entrypoint; name the command" -}}
{{- end -}}
{{- if and (eq (int64 .Values.sidecar.uid) (int64 .Values.engine.uid)) (ne .Values.gpu.mode "exec") (ne (toString (dig "protection" "uid" .Values.sidecar.options)) "seal") -}}
{{- fail "sidecar.uid and engine.uid are the same: the engine could write into slots. Use two, or sidecar.options.protection=seal" -}}
{{- end -}}
{{- if and (ne .Values.engine.kind "native") (not .Values.engine.driver.layout) -}}
{{- fail (printf "engine.driver.layout: %s declares no layout; name a layout's file or the checkpoint's directory in the sidecar, such as /checkpoints/Qwen3-8B" .Values.engine.kind) -}}
{{- end -}}
{{- if and (ne .Values.engine.kind "native") (ne (int64 .Values.engine.ranks) 1) -}}
{{- fail (printf "engine.ranks: %s is one rank for refitd, however many GPUs it uses; found %d" .Values.engine.kind (int64 .Values.engine.ranks)) -}}
{{- end -}}
{{- if and (eq .Values.gpu.mode "dra") (ne .Values.engine.kind "native") -}}
{{- fail (printf "gpu.mode is dra, but refitd keeps the slots of %s in host memory and needs no GPU; leave gpu.mode at none and ask for GPUs in engine.resources" .Values.engine.kind) -}}
{{- end -}}
{{- if and .Values.weights.initial.checkpoint (not .Values.weights.checkpoints.volume) -}}
{{- fail "weights.initial.checkpoint: there is no weights.checkpoints.volume to find it in" -}}
{{- end -}}
{{- end -}}
