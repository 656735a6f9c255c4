// Reports to Berth what opencode does, so that "berth waiting" lists it when it asks a question. Written by berth init.
import { spawn } from "node:child_process"

const children = new Set() // sessions of subagents: their end is not the end of the turn
const open = new Map() // questions without an answer, and their kinds
let failed = false
let last = ""
let next // the newest report that was not sent
let running = false

function report(session, state, question) {
  const args = ["hook", "--state", state, "--session", session]
  if (question) args.push("--question", question)
  if (args.join(" ") === last) return
  last = args.join(" ")
  next = args
  if (!running) send()
}

// Reports reach Berth in their order. Of those that wait, only the newest is sent.
function send() {
  const args = next
  next = undefined
  running = args !== undefined
  if (!running) return
  const child = spawn("berth", args, { stdio: "ignore" })
  child.once("error", () => {}) // Berth is not installed
  child.once("close", send)
}

// work reports that opencode works, or that it still waits for the answer to another question.
function work(session) {
  const [kind] = open.values()
  failed = false
  report(session, kind ? "Waiting" : "Working", kind)
}

function asked(p, kind) {
  open.set(p.id, kind)
  report(p.sessionID, "Waiting", kind)
}

function answered(p) {
  open.delete(p.requestID)
  last = "" // Berth knows that something was typed, but not that another question stands
  work(p.sessionID)
}

function status(p) {
  if (p.status.type !== "idle") return work(p.sessionID)
  if (children.has(p.sessionID)) return
  open.clear()
  if (!failed) report(p.sessionID, "Done")
}

function error(p) {
  if (!p.sessionID || children.has(p.sessionID)) return
  failed = p.error?.name !== "MessageAbortedError"
  report(p.sessionID, failed ? "Failed" : "Done")
}

const events = {
  "session.created": (p) => p.info.parentID && children.add(p.info.id),
  "session.status": status,
  "session.error": error,
  "permission.asked": (p) => asked(p, "permission"),
  "permission.replied": answered,
  "question.asked": (p) => asked(p, "question"),
  "question.replied": answered,
  "question.rejected": answered,
}

export const BerthPlugin = async () => ({
  event: async ({ event }) => {
    events[event.type]?.(event.properties)
  },
})
