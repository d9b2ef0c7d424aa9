// The dialogs of a session. Each method returns the properties of a `FormDialog`. A dialog acts on the branch that
// was current when it was opened.
import { go, linkToSession } from "./addresses.js";
import { pluralize } from "./format.js";

const FORMATS = [["html", "Web page"], ["md", "Markdown"], ["text", "Plain text"], ["jsonl", "Session file"], ["json", "JSON"]];

const FILES_CHOICES = [["conversation", "Conversation"], ["both", "Conversation and files"], ["files", "Files only"]];
const MAX_PATHS = 200;

/** Return the counts of actions in one line. Each row has the actions, a noun, and a function that formats the text. */
const describeFiles = ({ paths }, rows) =>
  rows
    .map(([actions, noun, format]) => [paths.filter(({ action }) => actions.includes(action)).length, noun, format])
    .filter(([count]) => count)
    .map(([count, noun, format]) => format(pluralize(count, noun)))
    .join(", ");

const PLANNED = [
  [["add"], "file", (files) => `${files} to add`],
  [["change"], "file", (files) => `${files} to change`],
  [["delete"], "file", (files) => `${files} to delete`],
  [["keep"], "conflict", (conflicts) => `${conflicts} to keep`],
];
const DONE = [
  [["add", "change"], "file", (files) => `${files} restored`],
  [["delete"], "file", (files) => `${files} deleted`],
  [["keep"], "conflict", (conflicts) => `${conflicts} kept`],
];

/** Return the paths whose check boxes `take:PATH` are set. */
const findTaken = (values) => Object.keys(values).filter((name) => name.startsWith("take:")).map((name) => name.slice(5));

/** Return what should move, from the fields of a dialog. */
const readFilesChoice = ({ files = "conversation", ...rest }) => ({ files, take: files === "conversation" ? [] : findTaken(rest) });

/** Return what a move did, in one line. */
const describeMove = (answer, { files }, moved) => {
  const restored = answer.files ? answer.files.missing ?? describeFiles(answer.files, DONE) : "";
  return files === "files" ? restored : `${moved} ${restored}`.trim();
};

export class SessionDialogs {
  /** `canRun()` returns whether models may be called, `notify` shows a toast, `edit` fills the composer, `ask` opens a dialog. */
  constructor(session, { canRun, notify, edit, ask }) {
    Object.assign(this, { session, canRun, notify, edit, ask });
  }

  /** Build a field for a summary. It is optional if the model may write it. */
  buildSummaryField(label) {
    const rest = this.canRun() ? { help: "Leave empty to let the model write it." } : { required: true };
    return { name: "summary", label, kind: "text", ...rest };
  }

  buildNavigateDialog(entry) {
    const { session } = this, branch = session.current;
    const options = [["no", "No summary"], ["model", "Summary by the model"], ["own", "My own summary"]];
    return {
      title: "Go here",
      note: `Moves ${branch} to ${session.describe(entry)}. Later entries stay in the tree.`,
      action: "Go",
      fields: [
        {
          name: "how",
          label: "Summarize the branch you're leaving?",
          kind: "choice",
          value: "no",
          options: options.filter(([how]) => how !== "model" || this.canRun()),
        },
        { name: "text", label: this.canRun() ? "Instructions, or your summary" : "Summary", kind: "text" },
      ],
      loadFields: this.canRun() ? () => this.loadFileFields("navigate", { to: entry, branch }) : undefined,
      submit: async ({ how, text, ...rest }) => {
        const choices = { no: {}, model: { summarize: true, instructions: text }, own: text ? { summary: text } : {} };
        const files = readFilesChoice(rest);
        const summary = files.files === "files" ? {} : choices[how];
        const answer = await session.navigate(entry, { branch, ...summary, ...files });
        if (answer.cancelled) throw new Error("a hook cancelled the move");
        this.notify(describeMove(answer, files, branch === session.current ? "Moved. Press u to undo." : `Moved ${branch}.`));
        return answer;
      },
      after: ({ text }) => text && branch === session.current && this.edit(text),
    };
  }

  /** Undo the last move. Ask first if files can be restored with it. */
  async undo() {
    const from = this.session.getShownPlace();
    const run = async (files) => {
      const answer = await this.session.undo(files, from);
      this.notify(describeMove(answer, files, `Undid ${answer.undone}`));
    };
    const { undoable } = this.session.info;
    await this.askForFiles("undo", {}, { title: undoable ? `Undo ${undoable}` : "Undo", action: "Undo" }, run);
  }

  /** Switch to another branch. Ask first if files can be restored with it. */
  async switchTo(branch) {
    const from = this.session.getShownPlace();
    const run = async (files) => {
      const answer = await this.session.switchTo(branch, files, from);
      this.notify(describeMove(answer, files, `Switched to ${branch}`));
    };
    await this.askForFiles("switch-branch", { branch }, { title: `Switch to ${branch}`, action: "Switch" }, run);
  }

  /** Call `run` with what should move, at once if no file differs. */
  async askForFiles(route, values, dialog, run) {
    const fields = this.canRun() ? await this.loadFileFields(route, values) : [];
    if (!fields.some(({ name }) => name === "files")) return run({});
    this.ask({ ...dialog, fields, submit: (chosen) => run(readFilesChoice(chosen)) });
  }

  /** Return the fields that show which files a move can restore, and ask what to move. Nothing if there are none. */
  async loadFileFields(route, values) {
    const { session } = this;
    const files = await session.previewFiles(route, values);
    if (files.missing) return [{ name: "missing", kind: "lines", lines: [`Files cannot be restored: ${files.missing}`] }];
    if (!files.paths.length) return [];
    const conflicts = files.paths.filter(({ action }) => action === "keep");
    const changes = files.paths.filter(({ action }) => action !== "keep");
    const lines = changes.slice(0, MAX_PATHS).map(({ path, action }) => `${action} ${path}`);
    if (changes.length > MAX_PATHS) lines.push(`… ${changes.length - MAX_PATHS} more`);
    lines.push(...conflicts.filter(({ canTake }) => !canTake).map(({ path, reason }) => `keep ${path} (${reason})`));
    lines.push(...files.others.map((other) => `${other} also changed files here`));
    return [
      { name: "files", label: "What should move?", kind: "choice", value: "conversation", options: files.filesOnly ? FILES_CHOICES.filter(([value]) => value !== "both") : FILES_CHOICES, help: describeFiles(files, PLANNED) },
      { name: "paths", kind: "lines", lines },
      ...conflicts
        .filter(({ canTake }) => canTake)
        .map(({ path, reason }) => ({ name: `take:${path}`, label: `Restore ${path} too (${reason})`, kind: "check" })),
      {
        name: "diff",
        label: "Diff",
        kind: "details",
        load: async () => (await session.previewFiles(route, { ...values, diff: true })).diff,
      },
    ];
  }

  buildRetryDialog(entry, models) {
    const { session } = this;
    return {
      title: "Retry",
      note: `Answers again on ${session.branch ?? session.current}. The old answer stays in the tree.`,
      action: "Retry",
      fields: [
        {
          name: "model",
          label: "Model",
          kind: "choice",
          value: session.promptOptions.model,
          options: [["", session.model ? `${session.model} (current)` : "Session default"], ...models.map((name) => [name, name])],
        },
      ],
      submit: ({ model }) => session.retry(entry, model ?? ""),
    };
  }

  buildBranchDialog(at) {
    return {
      title: "New branch",
      note: at ? `Starts after ${this.session.describe(at)}.` : undefined,
      action: "Create",
      fields: [
        { name: "name", label: "Name", required: true },
        { name: "description", label: "Description" },
        { name: "switch", label: "Switch to it", kind: "check", value: true },
      ],
      submit: (values) => this.session.createBranch({ ...values, ...(at ? { at } : {}), switch: values.switch === "yes" }),
    };
  }

  buildLabelDialog(entry) {
    const before = this.session.getLabel(entry) ?? "";
    return {
      title: "Set label",
      note: `Marks ${this.session.describe(entry)} in the tree. Leave the field empty to remove the label.`,
      action: "Set",
      fields: [{ name: "label", label: "Label", value: before }],
      submit: async ({ label = "" }) => label === before || this.session.label(entry, label || null),
    };
  }

  buildForkDialog(entry) {
    return {
      title: "Fork",
      note: `Copies the path to ${entry ? this.session.describe(entry) : "the end"} into a new session.`,
      action: "Fork",
      fields: [
        { name: "name", label: "Name of the new session" },
        { name: "tree", label: "Copy the whole tree", kind: "check" },
      ],
      submit: async ({ name, tree }) => {
        const part = tree === "yes" ? { tree: true } : entry ? { at: entry } : {};
        const forked = await this.session.fork({ ...part, ...(name ? { name } : {}) });
        this.notify("Forked");
        return forked;
      },
      after: ({ id }) => go(linkToSession(id)),
    };
  }

  /** Return null if there is no other branch. */
  buildMergeDialog(from) {
    const { session } = this, into = session.current;
    const others = session.branches.filter(({ name, archived }) => name !== into && !archived);
    if (!others.length) return null;
    return {
      title: "Merge",
      note: `Appends a summary of a branch to ${into}. Both branches stay as they are.`,
      action: "Merge",
      fields: [
        {
          name: "from",
          label: "Branch",
          kind: "choice",
          value: from ?? session.otherBranch ?? others[0].name,
          options: others.map(({ name }) => [name, name]),
        },
        this.buildSummaryField("Summary"),
      ],
      submit: async (values) => {
        const answer = await session.merge({ ...values, into });
        if (answer.cancelled) throw new Error("a hook cancelled the merge");
        this.notify(`Merged into ${into}`);
      },
    };
  }

  buildPromoteDialog(branch) {
    const { session } = this, into = session.current;
    return {
      title: `Promote ${branch}`,
      note:
        `${into} continues from the end of ${branch}. ` +
        "The other branches are summarized there and archived, not deleted.",
      action: "Promote",
      fields: [this.buildSummaryField("Summary of the other branches")],
      submit: async (values) => {
        const answer = await session.promote({ branch, into, ...values });
        if (answer.cancelled) throw new Error("a hook cancelled the promotion");
        this.notify(`Promoted; ${pluralize(answer.archived.length, "branch", "branches")} archived`);
      },
      after: () => go(linkToSession(session.id)),
    };
  }

  buildRenameDialog(branch) {
    const { session } = this;
    return {
      title: branch ? `Rename ${branch}` : "Rename the session",
      action: "Rename",
      fields: [{ name: "name", label: "Name", value: branch ?? session.info.name ?? "", required: true }],
      submit: ({ name }) => (branch ? session.changeBranch(branch, { name }) : session.rename(name)),
    };
  }

  buildExportDialog() {
    const { session } = this;
    return {
      title: "Export",
      action: "Download",
      fields: [
        { name: "format", label: "Format", kind: "choice", value: "html", options: FORMATS },
        { name: "redact", label: "Redact secrets", kind: "check" },
      ],
      submit: ({ format, redact }, onProgress) => {
        const file = `${session.info.name || session.id}.${format === "text" ? "txt" : format}`;
        return session.api.exportSession(session.base, { format, redact: redact === "yes" }, file, onProgress);
      },
      after: (report) => report && this.ask(this.buildReportDialog(report)),
    };
  }

  /** Build the dialog with the redaction report of an export. */
  buildReportDialog({ counts, linesLeftOut }) {
    const found = Object.entries(counts);
    const unread = linesLeftOut ? ` ${pluralize(linesLeftOut, "unreadable line")} left out.` : "";
    return {
      title: "Exported with secrets redacted",
      note: (found.length ? "Review the file before you share it. Other secrets may remain." : "No secrets were found.") + unread,
      list: found.map(([kind, count]) => `${count} × ${kind}`),
      action: "Close",
      submit: async () => {},
    };
  }
}
