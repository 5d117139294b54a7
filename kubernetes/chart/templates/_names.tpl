{{- define "cgpu.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The image of extender and DRA controller, which run as an unprivileged user. */}}
{{- define "cgpu.controllersImage" -}}
{{ .Values.controllersImage | default (include "cgpu.image" .) }}
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

{{/* Affinity of pods to nodes with the label cgpu.dev/engine=dra ("In"), or to all others. */}}
{{- define "cgpu.onEngine" -}}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - key: cgpu.dev/engine
              operator: {{ . }}
              values: [dra]
{{- end }}

{{/* What one aliyun.com/gpu-mem is. */}}
{{- define "cgpu.memoryUnit" -}}
{{ .Values.gpuMemoryUnit | default .Values.memoryUnit }}
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
{{- range list "gpumem" "gpumem-percentage" "gpucores" "priority" }}
- name: nvidia.com/{{ . }}
  ignoredByScheduler: true
{{- end }}
{{- end }}
{{- end }}

{{/* The labels of nodes that share their GPUs, NAME=VALUE with blanks between. */}}
{{- define "cgpu.selector" -}}
{{- range $name, $value := .Values.nodeSelector }}{{ $name }}={{ $value }} {{ end }}
{{- end }}

{{/*
Variables of admission policies: the annotations of pods that the extender writes, and those that
the device plugin writes.
*/}}
{{- define "cgpu.annotations" -}}
- name: claim
  expression: >-
    ["ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_DEV", "ALIYUN_COM_GPU_MEM_POD",
    "ALIYUN_COM_GPU_MEM_ASSIGNED", "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
    "scheduler.framework.gpushare.allocation", "cgpu.dev/node"]
- name: given
  expression: >-
    ["ALIYUN_COM_GPU_MEM_ASSIGNED", "cgpu.dev/slices", "cgpu.dev/sizes", "cgpu.dev/resize-status"]
{{- end }}

{{/* Variables of admission policies: cgpu's accounts, and the node that the token names. */}}
{{- define "cgpu.accounts" -}}
{{- $account := printf "request.userInfo.username == \"system:serviceaccount:%s:" .Release.Namespace }}
- name: isExtender
  expression: '{{ $account }}cgpu-scheduler-extender"'
- name: isPlugin
  expression: '{{ $account }}cgpu-device-plugin"'
- name: ownNode
  expression: >-
    has(request.userInfo.extra) &&
    "authentication.kubernetes.io/node-name" in request.userInfo.extra ?
    request.userInfo.extra["authentication.kubernetes.io/node-name"][0] : ""
{{- end }}

{{/* Where the extender's certificates come from: `own`, `generated`, or empty without TLS. */}}
{{- define "cgpu.tls" -}}
{{- if .Values.extender.tls.secretName -}}
own
{{- else if .Values.extender.tls.clientSecretName -}}
{{- fail "extender.tls.clientSecretName needs extender.tls.secretName" -}}
{{- else if .Values.extender.tls.generate -}}
generated
{{- end -}}
{{- end }}

{{/* The secret with the extender's certificate; empty without TLS. */}}
{{- define "cgpu.serverSecret" -}}
{{- if eq (include "cgpu.tls" .) "generated" -}}
cgpu-scheduler-extender-tls
{{- else -}}
{{- .Values.extender.tls.secretName -}}
{{- end -}}
{{- end }}

{{/* The secret with the scheduler's certificate; empty if clients need none. */}}
{{- define "cgpu.clientSecret" -}}
{{- if eq (include "cgpu.tls" .) "generated" -}}
cgpu-scheduler-client-tls
{{- else -}}
{{- .Values.extender.tls.clientSecretName -}}
{{- end -}}
{{- end }}

{{/* A failing node does not end both replicas. */}}
{{- define "cgpu.apart" -}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              app.kubernetes.io/name: {{ .name }}
{{- end }}

{{/* A drain of nodes leaves one replica. */}}
{{- define "cgpu.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "cgpu.labels" . | nindent 4 }}
spec:
  minAvailable: 1
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ .name }}
{{- end }}
