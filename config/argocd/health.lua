-- Health of Berth's kinds for Argo CD: resource.customizations in the ConfigMap argocd-cm. See docs/install.md.
-- The kinds follow kstatus: exactly one of Ready, Reconciling and Stalled is True once a generation was seen.
local hs = {}
if obj.kind == "Action" then -- it has no status: it is there to be used
  hs.status = "Healthy"
  return hs
end
if obj.status == nil or obj.status.conditions == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  hs.status = "Progressing"
  hs.message = "Waiting for the manager to see it"
  return hs
end
local found = {}
for _, condition in ipairs(obj.status.conditions) do
  if condition.status == "True" then
    found[condition.type] = condition
  end
end
if found.Ready ~= nil then
  hs.status = "Healthy"
  hs.message = found.Ready.message
  return hs
end
if found.Stalled ~= nil then
  local rest = { Stopped = "Suspended", Disabled = "Suspended", Completed = "Healthy", Succeeded = "Healthy" }
  hs.status = rest[found.Stalled.reason] or "Degraded"
  hs.message = found.Stalled.reason .. ": " .. (found.Stalled.message or "")
  return hs
end
hs.status = "Progressing"
if found.Reconciling ~= nil then
  hs.message = found.Reconciling.reason .. ": " .. (found.Reconciling.message or "")
end
return hs
