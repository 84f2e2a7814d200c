{{/* SPDX-License-Identifier: Apache-2.0

Public templates take the context of this chart: `.` here, `.Subcharts.refit` in a chart that depends on it.
*/}}
{{- define "refit.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels by which this chart's Services, policies and monitors find pods: put them on yours. */}}
{{- define "refit.selectorLabels" -}}
app.kubernetes.io/name: refit
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "refit.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "refit.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "refit.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "refit.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "refit.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "refit.engineImage" -}}
{{- with .Values.engine.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Bytes of a Kubernetes quantity given as (dict "of" "name.of.value" "quantity" "16Gi"). */}}
{{- define "refit.bytes" -}}
{{- $text := ternary (printf "%d" (int64 .quantity)) (toString .quantity) (kindIs "float64" .quantity) -}}
{{- $number := regexFind "^[0-9]+" $text -}}
{{- $suffix := trimPrefix $number $text -}}
{{- $factors := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- if or (not $number) (not (hasKey $factors $suffix)) -}}
{{- fail (printf "%s: expected whole bytes such as 1048576, 512Mi or 16Gi, found %q" .of $text) -}}
{{- end -}}
{{- mul (int64 $number) (int64 (get $factors $suffix)) -}}
{{- end -}}
