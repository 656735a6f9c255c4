# The image of the manager: static programs, the authorities that TLS trusts, and nothing else. make image builds it for amd64 and arm64.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS
ARG TARGETARCH
# The version of the release, such as v0.1.0, which berth version prints.
ARG VERSION=
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY api api
COPY cmd cmd
COPY config config
COPY controllers controllers
COPY internal internal
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags "-s -w -X github.com/berth-dev/berth/internal/cli.release=$VERSION" -o /out/ ./cmd/berth ./cmd/berth-shim ./cmd/berth-lsp ./cmd/berth-lsp-pod

FROM scratch
LABEL org.opencontainers.image.title="berth" \
      org.opencontainers.image.source="https://github.com/berth-dev/berth" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/ /usr/local/bin/
ENV PATH=/usr/local/bin
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/berth"]
