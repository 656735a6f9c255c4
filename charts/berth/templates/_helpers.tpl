{{/* Labels that the chart sets on every object. The schema does not allow them in commonLabels. */}}
{{- define "berth.chartLabels" -}}
app.kubernetes.io/name: berth
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "berth.labels" -}}
{{- merge (include "berth.chartLabels" . | fromYaml) (.Values.commonLabels | default dict) | toYaml }}
{{- end }}

{{/* Selector of the manager's Pods. It does not contain the release name, because a cluster has only one Berth. */}}
{{- define "berth.selector" -}}
app.kubernetes.io/name: berth
app.kubernetes.io/component: manager
{{- end }}

{{- define "berth.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* Name of the ServiceAccount of the manager. */}}
{{- define "berth.serviceAccount" -}}
{{- (.Values.serviceAccount).name | default "berth-manager" }}
{{- end }}

{{/* Name of the Secret with the certificate of the metrics, or nothing if the manager creates the certificate. */}}
{{- define "berth.metricsSecret" -}}
{{- if .Values.metrics.enabled }}{{ (.Values.metrics.certificate).secretName }}{{ end }}
{{- end }}

{{/* Name of the Service by which the metrics are scraped, and for which the certificate is valid. */}}
{{- define "berth.metricsHost" -}}
berth-metrics.{{ .Release.Namespace }}.svc
{{- end }}

{{/*
Renders the objects of a file in files/, which is a copy of a file in config/, with the namespace (also where an expression of a policy names
it in quotes), the labels and the ServiceAccount of this release:
include "berth.objects" (dict "root" $ "file" "files/..." "annotations" (dict ...) "labels" (dict ...))
*/}}
{{- define "berth.objects" -}}
{{- /* With watchNamespaces, only these ClusterRoles are bound for the whole cluster, because their resources are cluster-scoped. */}}
{{- $clusterScoped := list "berth-manager-reviews" "berth-manager-nodes" }}
{{- $root := .root }}
{{- $namespace := $root.Release.Namespace }}
{{- $labels := merge (dict) (include "berth.chartLabels" $root | fromYaml) (.labels | default dict) ($root.Values.commonLabels | default dict) }}
{{- $annotations := .annotations | default dict }}
{{- range $text := regexSplit "(?m)^---$" ($root.Files.Get .file | replace "\"berth-system\"" ($namespace | quote)) -1 }}
{{- $object := fromYaml $text }}
{{- if hasKey $object "Error" }}{{ fail (printf "%s: %s" $.file $object.Error) }}{{ end }}
{{- if $object }}
{{- $meta := $object.metadata }}
{{- if $meta.namespace }}{{ $_ := set $meta "namespace" $namespace }}{{ end }}
{{- $_ := set $meta "labels" (merge ($meta.labels | default dict) $labels) }}
{{- if $annotations }}{{ $_ := set $meta "annotations" (merge ($meta.annotations | default dict) $annotations) }}{{ end }}
{{- /* The manager's ServiceAccount is the only one in files/. */}}
{{- if eq $object.kind "ServiceAccount" }}
{{- $_ := set $meta "name" (include "berth.serviceAccount" $root) }}
{{- with ($root.Values.serviceAccount).annotations }}{{ $_ := set $meta "annotations" (merge ($meta.annotations | default dict) .) }}{{ end }}
{{- end }}
{{- range $object.subjects }}{{ if eq .kind "ServiceAccount" }}{{ $_ := set . "namespace" $namespace }}{{ $_ := set . "name" (include "berth.serviceAccount" $root) }}{{ end }}{{ end }}
{{- if eq $object.kind "ValidatingAdmissionPolicyBinding" }}{{ with $object.spec.paramRef }}{{ $_ := set . "namespace" $namespace }}{{ end }}{{ end }}
{{- $secret := include "berth.metricsSecret" $root }}
{{- if and (eq $object.kind "ServiceMonitor") $secret }}
{{- $ca := dict "secret" (dict "name" $secret "key" "ca.crt") }}
{{- range $object.spec.endpoints }}{{ $_ := set . "tlsConfig" (dict "serverName" (include "berth.metricsHost" $root) "ca" $ca) }}{{ end }}
{{- end }}
{{- $each := list "" }}
{{- if and (eq $object.kind "ClusterRoleBinding") $root.Values.watchNamespaces (not (has $meta.name $clusterScoped)) }}
{{- $each = $root.Values.watchNamespaces }}
{{- $_ := set $object "kind" "RoleBinding" }}
{{- $_ := set $meta "name" (printf "%s-watched" $meta.name) }}
{{- end }}
{{- range $each }}
{{- if . }}{{ $_ := set $meta "namespace" . }}{{ end }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}
{{- end }}
{{- end }}
