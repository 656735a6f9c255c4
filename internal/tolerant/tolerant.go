// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tolerant lets the clients of an API server read lists and watches of berth.dev that contain objects which do not decode. Without it, one such object
// makes each list and watch of its kind fail, in all namespaces. Admission refuses such objects (docs/decisions/0071), but an older API, a restored backup or a
// defect of admission can store one.
package tolerant

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/printable"
)

// reasonUndecodable is the reason of the error for a response with one object that does not decode.
const reasonUndecodable metav1.StatusReason = "Undecodable"

// IsUndecodable reports whether a request failed because its response contains an object that does not decode.
func IsUndecodable(err error) bool { return apierrors.ReasonForError(err) == reasonUndecodable }

// Undecodable describes an object that does not decode.
type Undecodable struct {
	// Object identifies the object. Its metadata has only name, namespace, UID and resource version.
	Object *metav1.PartialObjectMetadata
	Err    error

	identity identity
}

func (u *Undecodable) Error() string {
	return fmt.Sprintf("%s %s/%s cannot be decoded, so Berth does not act on it: correct this value with kubectl, or delete the object: %v",
		u.Object.Kind, u.Object.Namespace, u.Object.Name, u.Err)
}

// Config returns a copy of the configuration whose clients omit objects of berth.dev that do not decode. A list does not contain such an object, and a watch
// reports it as deleted until it decodes again, so that a cache has the same content after a list and after a watch. A response with a single object of that
// kind is an error. The function report is called for each omitted object, by several goroutines at the same time, and again with each version of the object
// and with each list. Requests for metadata or a table are not affected.
func Config(config *rest.Config, report func(*Undecodable)) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &transport{next: next, report: report} })
	return config
}

type transport struct {
	next   http.RoundTripper
	report func(*Undecodable)
}

// RoundTrip replaces the body of responses that can contain objects of berth.dev.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	path := "/apis/" + v1alpha1.GroupVersion.String() + "/"
	if err != nil || response.StatusCode >= http.StatusMultipleChoices || !strings.Contains(request.URL.Path, path) ||
		!strings.HasPrefix(response.Header.Get("Content-Type"), runtime.ContentTypeJSON) {
		return response, err
	}
	if watching, _ := strconv.ParseBool(request.URL.Query().Get("watch")); watching {
		response.Body = &watchBody{transport: t, body: response.Body, events: json.NewDecoder(response.Body)}
		return response, nil
	}
	return t.checkBody(response)
}

// WrappedRoundTripper returns the transport that t wraps, so that client-go can cancel requests and close idle connections.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// checkBody reads the body of a response and checks the object or the list that it contains.
func (t *transport) checkBody(response *http.Response) (*http.Response, error) {
	body, err := io.ReadAll(response.Body)
	if closed := response.Body.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return nil, err
	}
	content := struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        json.RawMessage   `json:"metadata,omitempty"`
		Items           []json.RawMessage `json:"items"`
	}{}
	if json.Unmarshal(body, &content) == nil && content.APIVersion == v1alpha1.GroupVersion.String() {
		if strings.HasSuffix(content.Kind, "List") {
			if items := t.omit(content.Items); len(items) < len(content.Items) {
				content.Items = items
				body, err = json.Marshal(content)
			}
		} else if bad := check(body); bad != nil {
			status := apierrors.NewInternalError(bad).ErrStatus
			status.TypeMeta, status.Reason, status.Message = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, reasonUndecodable, bad.Error()
			response.StatusCode, response.Status = http.StatusInternalServerError, http.StatusText(http.StatusInternalServerError)
			body, err = json.Marshal(status)
		}
	}
	response.ContentLength = int64(len(body))
	response.Header.Del("Content-Length")
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, err
}

// omit returns the items that decode, and reports the others.
func (t *transport) omit(items []json.RawMessage) []json.RawMessage {
	left := make([]json.RawMessage, 0, len(items))
	for _, item := range items {
		if bad := check(item); bad != nil {
			t.report(bad)
			continue
		}
		left = append(left, item)
	}
	return left
}

// watchBody is the body of a watch in which each event with an object that does not decode is replaced.
type watchBody struct {
	transport *transport
	body      io.Closer
	events    *json.Decoder
	pending   bytes.Buffer
}

func (w *watchBody) Close() error { return w.body.Close() }

func (w *watchBody) Read(into []byte) (int, error) {
	for w.pending.Len() == 0 {
		var event json.RawMessage
		if err := w.events.Decode(&event); err != nil {
			return 0, err //nolint:wrapcheck // io.EOF has a meaning
		}
		w.pending.Write(w.transport.event(event))
		w.pending.WriteByte('\n')
	}
	return w.pending.Read(into) //nolint:wrapcheck // never an error
}

// event returns the event. If its object does not decode, it returns an event that the object was deleted, with only the metadata that a cache needs.
func (t *transport) event(text []byte) []byte {
	event := struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}{}
	if json.Unmarshal(text, &event) != nil || event.Type != watch.Added && event.Type != watch.Modified && event.Type != watch.Deleted {
		return text
	}
	bad := check(event.Object)
	if bad == nil {
		return text
	}
	if event.Type != watch.Deleted {
		t.report(bad)
	}
	event.Type = watch.Deleted
	var err error
	if event.Object, err = json.Marshal(bad.identity); err == nil {
		text, err = json.Marshal(event)
	}
	utilruntime.Must(err) // texts and valid JSON can be encoded
	return text
}

// identity is what a cache needs to remove an object.
type identity struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name            string    `json:"name"`
		Namespace       string    `json:"namespace,omitempty"`
		UID             types.UID `json:"uid,omitempty"`
		ResourceVersion string    `json:"resourceVersion,omitempty"`
	} `json:"metadata"`
}

var decoder = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme).UniversalDeserializer()
}()

// check returns nil if an object of berth.dev decodes, and for all other objects.
func check(text []byte) *Undecodable {
	_, _, err := decoder.Decode(withoutLargeExponents(text), nil, nil)
	if err == nil || runtime.IsNotRegisteredError(err) || runtime.IsMissingKind(err) || runtime.IsMissingVersion(err) {
		return nil
	}
	bad := &Undecodable{Object: &metav1.PartialObjectMetadata{}, Err: shortened(err)}
	_ = json.Unmarshal(text, &bad.identity) // the names are empty if metadata does not decode
	is := bad.identity.Metadata
	bad.Object.TypeMeta = bad.identity.TypeMeta
	bad.Object.Name, bad.Object.Namespace, bad.Object.UID, bad.Object.ResourceVersion = is.Name, is.Namespace, is.UID, is.ResourceVersion
	return bad
}

// withoutLargeExponents returns the text or, if it contains quantities with exponents of at least four digits, a copy without their letter e. To decode such a quantity
// takes minutes or more; without the letter it does not decode. A text in another field, such as an argument, decodes in any case. A regular expression
// would take as long as decoding.
func withoutLargeExponents(text []byte) []byte {
	changed, digits := text, 0
	for i, c := range text {
		if '0' <= c && c <= '9' {
			digits++
			continue
		}
		if e := i - digits - 1; c == '"' && digits >= 4 && e > 0 {
			if text[e] == '-' || text[e] == '+' {
				e--
			}
			number := bytes.TrimRight(bytes.TrimRight(text[:e], "0123456789."), "-+")
			if (text[e] == 'e' || text[e] == 'E') && bytes.HasSuffix(number, []byte{'"'}) {
				if &changed[0] == &text[0] {
					changed = bytes.Clone(text)
				}
				changed[e] = 'x'
			}
		}
		digits = 0
	}
	return changed
}

// maxError bounds the text of an error, which contains the value that does not decode.
const maxError = 200

func shortened(err error) error {
	return errors.New(printable.Shorten(printable.Line(err.Error()), maxError))
}
