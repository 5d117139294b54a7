{{- define "cgpu.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Labels of an object: (dict "root" $ "name" "cgpu-node"). */}}
{{- define "cgpu.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: cgpu
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{/* Selector, tolerations and priority of the DaemonSets' pods: (dict "root" $). */}}
{{- define "cgpu.onNodes" -}}
nodeSelector:
  {{- toYaml .root.Values.nodeSelector | nindent 2 }}
tolerations:
  {{- toYaml .root.Values.tolerations | nindent 2 }}
priorityClassName: system-node-critical
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Resources that a scheduler leaves to the extender. */}}
{{- define "cgpu.managedResources" -}}
- name: aliyun.com/gpu-mem
  ignoredByScheduler: false
- name: aliyun.com/gpu-core.percentage
  ignoredByScheduler: false
{{- if .Values.hami }}
- name: nvidia.com/gpu
  ignoredByScheduler: false
{{- range list "gpumem" "gpumem-percentage" "gpucores" }}
- name: nvidia.com/{{ . }}
  ignoredByScheduler: true
{{- end }}
{{- end }}
{{- end }}

{{/* The labels of nodes that share their GPUs, NAME=VALUE with blanks between. */}}
{{- define "cgpu.selector" -}}
{{- range $name, $value := .Values.nodeSelector }}{{ $name }}={{ $value }} {{ end }}
{{- end }}
