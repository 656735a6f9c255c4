// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DevServerSpec is the desired state of a DevServer.
// +kubebuilder:validation:XValidation:rule=`(has(self.session) ? self.session : "") == (has(oldSelf.session) ? oldSelf.session : "")`,message="session is immutable; delete and recreate the object"
// +kubebuilder:validation:XValidation:rule="has(self.runtime) == has(oldSelf.runtime) && (!has(self.runtime) || self.runtime.type == oldSelf.runtime.type)",message="runtime is immutable, except for the fields of pod; delete and recreate the object"
// +kubebuilder:validation:XValidation:rule="has(self.instanceRef) == has(oldSelf.instanceRef) && (!has(self.instanceRef) || self.instanceRef == oldSelf.instanceRef)",message="instanceRef is immutable; delete and recreate the object"
// +kubebuilder:validation:XValidation:rule="!has(self.state) || self.state != 'OnDemand'",message="only LanguageServers support the state OnDemand; use Running or Stopped"
// +kubebuilder:validation:XValidation:rule="!has(self.runtime) || self.runtime.type != 'Pod' || !has(self.proxy) || self.proxy != 'Enabled'",message="proxy is not supported for Pods, because the address of the Service outlives restarts; set proxy to Disabled"
// +kubebuilder:validation:XValidation:rule="!has(self.runtime) || self.runtime.type != 'Pod' || !(has(self.readiness) && has(self.readiness.exec) || has(self.liveness) && has(self.liveness.exec))",message="exec probes are not supported for Pods, because they run on the machine of the manager; use httpGet or tcpSocket"
// +kubebuilder:validation:XValidation:rule="has(self.process.command) || has(self.runtime) && has(self.runtime.pod)",fieldPath=".process.command",reason="FieldValueRequired",message="command is required unless runtime.pod.image names an image whose entrypoint runs instead; set process.command"
// +kubebuilder:validation:XValidation:rule="!has(self.process.resumeCommand)",fieldPath=".process.resumeCommand",reason="FieldValueForbidden",message="only Instances support resumeCommand; remove process.resumeCommand"
type DevServerSpec struct {
	ProcessSpec `json:",inline"`

	// runtime selects where the process runs. Immutable, except for the fields of pod. Defaults to the runtime with which the manager was started.
	// +optional
	Runtime *RuntimeSpec `json:"runtime,omitempty"`

	// port is the port on which the server listens, 1 to 65535. Unset: Berth chooses a port and keeps it as long as the object exists; in a Pod the port
	// is 8080. The Service of a DevServer in a Pod has the same port. The program gets the port as $(PORT) in its arguments and as the environment
	// variable PORT. With the proxy, port is the port on which the proxy listens, and the program gets another port.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`

	// proxy states whether Berth forwards HTTP requests to the server: Enabled or Disabled. Enabled: Berth listens on the port, and the server listens
	// on status.backendPort. While the server restarts, requests wait instead of being refused. Disabled: the server itself listens on the port.
	// Defaults to Disabled.
	// +optional
	// +kubebuilder:default=Disabled
	Proxy ProxyMode `json:"proxy,omitempty"`

	// allowedHosts lists additional host names for which the proxy accepts requests, and whose pages may open WebSockets. The proxy always accepts
	// localhost, names below localhost, and loopback addresses. An entry is a lower-case DNS name, a wildcard such as *.example.com for all names below
	// example.com, or an IPv4 address. At most 16 entries of at most 253 characters. The proxy answers 403 to requests for any other host, because a web
	// page of another site may have sent them. Unset: no additional names. The field has no effect without the proxy.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule=`self.matches(r'^(\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$')`,message="each entry of allowedHosts must be a DNS name in lower case without a port, such as dev.example.com or *.example.com"
	// +listType=set
	AllowedHosts []string `json:"allowedHosts,omitempty"`

	// url states how Berth determines status.url.
	// +optional
	// +kubebuilder:default={}
	URL URLSpec `json:"url,omitzero"`

	// readiness is the probe that decides whether the server is ready. Unset: the server is ready when one of its processes listens on a TCP port and
	// has answered there once or, if it does not speak HTTP, accepts connections.
	// +optional
	Readiness *Probe `json:"readiness,omitempty"`

	// liveness is the probe that detects a server that has stopped working. Berth restarts the server if the probe fails. Probing begins after the
	// server was ready for the first time. Unset: no liveness probe.
	// +optional
	Liveness *Probe `json:"liveness,omitempty"`

	// instanceRef names the Instance that owns this server: deleting the Instance deletes the server. Immutable.
	// +optional
	InstanceRef *LocalReference `json:"instanceRef,omitempty"`
}

// ProxyMode states whether Berth forwards requests to the server.
// +kubebuilder:validation:Enum=Enabled;Disabled
type ProxyMode string

const (
	// ProxyEnabled means that Berth listens on the port and forwards requests, so that the address outlives restarts of the server.
	ProxyEnabled ProxyMode = "Enabled"
	// ProxyDisabled means that the server itself listens on the port.
	ProxyDisabled ProxyMode = "Disabled"
)

// URLDetection states whether Berth searches the output of the server for its URL.
// +kubebuilder:validation:Enum=Enabled;Disabled
type URLDetection string

const (
	// URLDetectionEnabled takes scheme, host and path from the first URL in the output whose port the server listens on.
	URLDetectionEnabled URLDetection = "Enabled"
	// URLDetectionDisabled takes scheme and path only from the spec.
	URLDetectionDisabled URLDetection = "Disabled"
)

// URLScheme is the scheme of a URL, in upper case as in the probes of Pods.
// +kubebuilder:validation:Enum=HTTP;HTTPS
type URLScheme string

const (
	// SchemeHTTP is the scheme of URLs that begin with http.
	SchemeHTTP URLScheme = "HTTP"
	// SchemeHTTPS is the scheme of URLs that begin with https.
	SchemeHTTPS URLScheme = "HTTPS"
)

// URLSpec states how Berth determines status.url.
type URLSpec struct {
	// scheme is HTTP or HTTPS. Unset: the scheme of the URL in the output, or HTTP if there is none. With the proxy, scheme is the scheme with which the
	// proxy connects to the server, and HTTP if unset; the URL of the proxy itself begins with http.
	// +optional
	Scheme URLScheme `json:"scheme,omitempty"`

	// path is the path of the URL. It must begin with a slash. At most 1024 characters. Unset: the path of the URL in the output, or / if there is none.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self == '' || self.startsWith('/')",message="path must begin with /"
	Path string `json:"path,omitempty"`

	// detect states whether Berth searches the output for a URL, of which it uses scheme, host and path: Enabled or Disabled. Defaults to Enabled.
	// +optional
	// +kubebuilder:default=Enabled
	Detect URLDetection `json:"detect,omitempty"`
}

// Probe checks a server. Exactly one of httpGet, tcpSocket and exec must be set.
// +kubebuilder:validation:XValidation:rule="(has(self.httpGet) ? 1 : 0) + (has(self.tcpSocket) ? 1 : 0) + (has(self.exec) ? 1 : 0) == 1",message="set exactly one of httpGet, tcpSocket and exec"
type Probe struct {
	// httpGet sends an HTTP GET request. The probe succeeds if the response has a status from 200 to 399.
	// +optional
	HTTPGet *HTTPGetProbe `json:"httpGet,omitempty"`

	// tcpSocket opens a TCP connection. The probe succeeds if the connection is established.
	// +optional
	TCPSocket *TCPSocketProbe `json:"tcpSocket,omitempty"`

	// exec runs a command. The probe succeeds if the command exits with code 0. Not supported for Pods.
	// +optional
	Exec *ExecProbe `json:"exec,omitempty"`

	// periodSeconds is the time between two probes, in seconds. Until the server is ready, Berth probes it more often. 1 to 3600. Defaults to 5.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	PeriodSeconds *int32 `json:"periodSeconds,omitempty"`

	// timeoutSeconds is the time after which a probe without a response fails, in seconds. 1 to 300. Defaults to 2.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=300
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// failureThreshold is the number of consecutive failures after which the server is not ready (readiness) or is restarted (liveness). 1 to 100.
	// Defaults to 3.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	FailureThreshold *int32 `json:"failureThreshold,omitempty"`
}

// HTTPGetProbe is a GET request to an address of the machine on which the server listens or, in a Pod, to the address of the Pod.
type HTTPGetProbe struct {
	// path is the path of the request. It must begin with a slash. At most 1024 characters. Defaults to /.
	// +optional
	// +kubebuilder:default=/
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="path must begin with /"
	Path string `json:"path,omitempty"`

	// port is the port of the request, 1 to 65535. Unset: the port on which the server listens.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`

	// scheme is HTTP or HTTPS. The certificate of the server is not verified. Defaults to HTTP.
	// +optional
	// +kubebuilder:default=HTTP
	Scheme URLScheme `json:"scheme,omitempty"`
}

// TCPSocketProbe connects to an address on which the server listens: an address of the machine or, in a Pod, the address of the Pod.
type TCPSocketProbe struct {
	// port is the port to connect to, 1 to 65535. Unset: the port on which the server listens.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`
}

// ExecProbe is a command that runs on the machine of the server, with the environment and in the working directory of the server.
type ExecProbe struct {
	// command is the program and its arguments. 1 to 64 entries of at most 4096 characters. Berth does not run a shell. $(PORT) is
	// replaced by the port of the running server; other references are not replaced, and $$ becomes $.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	Command []string `json:"command"`
}

// DevServerStatus is the observed state of a DevServer.
type DevServerStatus struct {
	ProcessStatus `json:",inline"`

	// url is the URL of the server. It stays set while the server restarts. The host is that of the URL in the output, if that host is localhost, a name
	// below localhost or a loopback address, and leads to the server. Otherwise the host is an address on which the server listens. With the proxy, the
	// host is localhost, or 127.0.0.1 while the proxy cannot listen on ::1. In a Pod, the host is the name of the Service.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url,omitempty"`

	// port is the port of the server: spec.port, or the port that Berth chose. With the proxy, it is the port on which the proxy listens.
	// +optional
	Port int32 `json:"port,omitempty"`

	// backendPort is the port that Berth chose for the server behind the proxy. 0 without the proxy.
	// +optional
	BackendPort int32 `json:"backendPort,omitempty"`

	// observedPorts are the TCP ports on which the processes of this object listen, in ascending order. At most 16.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	ObservedPorts []int32 `json:"observedPorts,omitempty"`
}

// DevServer is a development server. Its URL is in status.url.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=berth,shortName=dsv
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Status of the condition Ready"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Reason of the condition Ready"
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.status.url`,description="Address of the server"
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.status.restartCount`,description="Number of restarts"
// +kubebuilder:printcolumn:name="Runtime",type=string,JSONPath=`.spec.runtime.type`,description="Runtime in the spec; empty: default of the manager",priority=1
// +kubebuilder:printcolumn:name="Session",type=string,JSONPath=`.spec.session`,description="Session that groups objects",priority=1
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.status.hostName`,description="Host that manages the process",priority=1
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.process.node`,description="Machine or cluster node on which the process runs",priority=1
// +kubebuilder:printcolumn:name="PID",type=integer,JSONPath=`.status.process.pid`,description="Process ID of the program",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
// +kubebuilder:selectablefield:JSONPath=`.spec.instanceRef.name`
// +kubebuilder:selectablefield:JSONPath=`.spec.runtime.type`
// +kubebuilder:selectablefield:JSONPath=`.spec.session`
// +kubebuilder:selectablefield:JSONPath=`.spec.state`
type DevServer struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the metadata that all Kubernetes objects have.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec DevServerSpec `json:"spec"`

	// status is the observed state. Only Berth writes it.
	// +optional
	Status DevServerStatus `json:"status,omitempty"`
}

// GetProcessSpec returns the part of the spec that all process kinds share.
func (d *DevServer) GetProcessSpec() *ProcessSpec { return &d.Spec.ProcessSpec }

// GetProcessStatus returns the part of the status that all process kinds share.
func (d *DevServer) GetProcessStatus() *ProcessStatus { return &d.Status.ProcessStatus }

// DevServerList is a list of DevServers.
// +kubebuilder:object:root=true
type DevServerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DevServer `json:"items"`
}
