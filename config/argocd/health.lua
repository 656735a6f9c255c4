-- Health of Berth's kinds for Argo CD: resource.customizations in the ConfigMap argocd-cm. See docs/install.md.
-- The kinds follow kstatus: once a generation is observed, exactly one of Ready, Reconciling and Stalled is True.
local hs = {}
if obj.kind == "Action" then -- it has no status and is ready for use when it exists
  hs.status = "Healthy"
  return hs
end
if obj.status == nil or obj.status.conditions == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  hs.status = "Progressing"
  hs.message = "Waiting for the manager to observe the object"
  return hs
end
local found = {}
for _, condition in ipairs(obj.status.conditions) do
  if condition.status == "True" then
    found[condition.type] = condition
  end
end
if found.Ready ~= nil then
  local rest = { Stopped = "Suspended", Disabled = "Suspended" }
  hs.status = rest[found.Ready.reason] or "Healthy"
  hs.message = found.Ready.message
  return hs
end
if found.Stalled ~= nil then
  hs.status = found.Stalled.reason == "Disabled" and "Suspended" or "Degraded" -- a StrategyRun waits until its Strategy is enabled
  hs.message = found.Stalled.reason .. ": " .. (found.Stalled.message or "")
  return hs
end
hs.status = "Progressing"
if found.Reconciling ~= nil then
  hs.message = found.Reconciling.reason .. ": " .. (found.Reconciling.message or "")
end
return hs
