{{/* The labels of every object. */}}
{{- define "berth.labels" -}}
app.kubernetes.io/name: berth
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What the Pods of the manager are found by. It has no name of the release: there is one Berth in a cluster. */}}
{{- define "berth.selector" -}}
app.kubernetes.io/name: berth
app.kubernetes.io/component: manager
{{- end }}

{{- define "berth.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/*
The objects of a file below files/, which is a copy of one below config/, with the namespace and the labels of this release:
include "berth.objects" (dict "root" $ "file" "files/..." "annotations" (dict ...) "labels" (dict ...))
*/}}
{{- define "berth.objects" -}}
{{- /* Where the manager serves some namespaces, these ClusterRoles alone are bound for the cluster: what they are about is in no namespace. */}}
{{- $clusterScoped := list "berth-manager-reviews" "berth-manager-nodes" }}
{{- $root := .root }}
{{- $namespace := $root.Release.Namespace }}
{{- $labels := merge (dict) (include "berth.labels" $root | fromYaml) (.labels | default dict) }}
{{- $annotations := .annotations | default dict }}
{{- range $text := regexSplit "(?m)^---$" ($root.Files.Get .file) -1 }}
{{- $object := fromYaml $text }}
{{- if hasKey $object "Error" }}{{ fail (printf "%s: %s" $.file $object.Error) }}{{ end }}
{{- if $object }}
{{- $meta := $object.metadata }}
{{- if $meta.namespace }}{{ $_ := set $meta "namespace" $namespace }}{{ end }}
{{- $_ := set $meta "labels" (merge ($meta.labels | default dict) $labels) }}
{{- if $annotations }}{{ $_ := set $meta "annotations" (merge ($meta.annotations | default dict) $annotations) }}{{ end }}
{{- range $object.subjects }}{{ if .namespace }}{{ $_ := set . "namespace" $namespace }}{{ end }}{{ end }}
{{- if eq $object.kind "ValidatingAdmissionPolicyBinding" }}{{ with $object.spec.paramRef }}{{ $_ := set . "namespace" $namespace }}{{ end }}{{ end }}
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
